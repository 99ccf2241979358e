package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
	"sigs.k8s.io/kueue/pkg/podset"
	clientutil "sigs.k8s.io/kueue/pkg/util/client"
)

var kind = schema.GroupVersionKind{Group: "roundhouse.dev", Version: "v1alpha1", Kind: "TrainingJob"}

const (
	// The job is suspended, and the template of its owner is not restored yet. A batch Job has the
	// same annotation.
	stopping = "kueue.x-k8s.io/stopping"
	// The number of pods that Kueue admitted. While a job has this annotation, its template has
	// Kueue's changes.
	admitted = "roundhouse.dev/admitted-pods"
)

// trainingJob is a TrainingJob as Kueue's library needs it. Fields that this program does not know
// are preserved.
type trainingJob struct {
	unstructured.Unstructured
}

var (
	_ jobframework.GenericJob        = (*trainingJob)(nil)
	_ jobframework.JobWithCustomStop = (*trainingJob)(nil)
)

func newJob() jobframework.GenericJob {
	job := &trainingJob{}
	job.SetGroupVersionKind(kind)
	return job
}

func (j *trainingJob) Object() client.Object { return &j.Unstructured }

func (j *trainingJob) GVK() schema.GroupVersionKind { return kind }

func (j *trainingJob) IsSuspended() bool {
	return j.isPaused() && j.GetAnnotations()[stopping] == ""
}

func (j *trainingJob) Suspend() { j.set(true, "spec", "suspend") }

// IsActive reports whether the job may have pods: Kueue gives their quota to another job when it
// has none. If the operator has not observed the newest change of the job, the number of pods is
// unknown and the job counts as active.
func (j *trainingJob) IsActive() bool {
	return j.number("status", "observedGeneration") != j.GetGeneration() || j.number("status", "workers", "pods") > 0
}

func (j *trainingJob) PodsReady(context.Context) bool {
	return apimeta.IsStatusConditionTrue(j.conditions(), "Running")
}

func (j *trainingJob) Finished(context.Context) (message string, success, finished bool) {
	for _, condition := range j.conditions() {
		if condition.Status == metav1.ConditionTrue && (condition.Type == "Succeeded" || condition.Type == "Failed") {
			return condition.Message, condition.Type == "Succeeded", true
		}
	}
	return "", false, false
}

// PodSets asks for one pod per worker and spare. An elastic job may be admitted with fewer workers,
// but not below minReplicas.
func (j *trainingJob) PodSets(context.Context) ([]kueue.PodSet, error) {
	template, err := j.template()
	if err != nil {
		return nil, err
	}
	if len(template.Spec.Containers) == 0 {
		// A pod set needs a container. The operator gives it this name.
		template.Spec.Containers = []corev1.Container{{Name: "trainer"}}
	}
	setDefaults(template.Spec.InitContainers)
	setDefaults(template.Spec.Containers)
	set := kueue.PodSet{Name: "workers", Template: *template, Count: j.count()}
	if least := j.number("spec", "workers", "minReplicas"); least > 0 {
		set.MinCount = ptr.To(int32(least*j.podsPerReplica() + j.spares()))
	}
	return []kueue.PodSet{set}, nil
}

// RunWithPodSetsInfo resumes the job with the number of workers and the nodes of the flavor that
// Kueue has chosen, all in one update.
func (j *trainingJob) RunWithPodSetsInfo(_ context.Context, infos []podset.PodSetInfo) error {
	if len(infos) != 1 {
		return podset.BadPodSetsInfoLenError(1, len(infos))
	}
	template, err := j.template()
	if err != nil {
		return err
	}
	if err := podset.Merge(&template.ObjectMeta, &template.Spec, infos[0]); err != nil {
		return err
	}
	j.set(j.replicas(infos[0].Count), "spec", "workers", "replicas")
	j.set(false, "spec", "suspend")
	// Kueue may admit a part of a replica, which stays unused.
	j.annotate(admitted, strconv.Itoa(int(j.count())))
	return j.setTemplate(template)
}

// RestorePodSetsInfo restores the template and the replicas of the job's owner, and reports whether
// that changes the job.
func (j *trainingJob) RestorePodSetsInfo(infos []podset.PodSetInfo) bool {
	template, err := j.template()
	if err != nil || len(infos) != 1 {
		return false
	}
	changed := podset.RestorePodSpec(&template.ObjectMeta, &template.Spec, infos[0]) || infos[0].Count != j.count()
	if changed {
		j.set(j.replicas(infos[0].Count), "spec", "workers", "replicas")
		changed = j.setTemplate(template) == nil
	}
	return changed
}

// Stop suspends the job. A template can be changed only while its job is suspended, so it is
// restored in a second update. If that fails the annotation is still there, and the job does not
// count as suspended: Kueue stops it again.
func (j *trainingJob) Stop(
	ctx context.Context, c client.Client, infos []podset.PodSetInfo, _ jobframework.StopReason, _ string,
) (bool, error) {
	if count, found := j.GetAnnotations()[admitted]; found && len(infos) == 1 && count != strconv.Itoa(int(j.count())) {
		// The owner has scaled the job since, so it queues again with the new number.
		infos[0].Count = j.count()
	}
	stops := !j.isPaused()
	if stops {
		suspend := func() (bool, error) {
			j.Suspend()
			j.annotate(stopping, "true")
			return true, nil
		}
		if err := clientutil.Patch(ctx, c, j.Object(), suspend); err != nil {
			return false, fmt.Errorf("suspend: %w", err)
		}
	}
	restore := func() (bool, error) {
		if _, found := j.GetAnnotations()[admitted]; found {
			j.RestorePodSetsInfo(infos)
		}
		j.annotate(admitted, "")
		j.annotate(stopping, "")
		return true, nil
	}
	if err := clientutil.Patch(ctx, c, j.Object(), restore); err != nil {
		return stops, fmt.Errorf("restore the template: %w", err)
	}
	return stops, nil
}

// isPaused reports whether the job's spec asks the operator to suspend it.
func (j *trainingJob) isPaused() bool {
	paused, _, _ := unstructured.NestedBool(j.Unstructured.Object, "spec", "suspend")
	return paused
}

// annotate sets an annotation, or removes it if the value is empty.
func (j *trainingJob) annotate(name, value string) {
	annotations := j.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	if value == "" {
		delete(annotations, name)
	}
	j.SetAnnotations(annotations)
}

// count returns the number of pods that the spec asks for, with spares.
func (j *trainingJob) count() int32 {
	return int32(j.number("spec", "workers", "replicas")*j.podsPerReplica() + j.spares())
}

// replicas returns the number of whole replicas that a number of pods makes, without spares.
func (j *trainingJob) replicas(pods int32) int64 {
	return max(1, (int64(pods)-j.spares())/j.podsPerReplica())
}

func (j *trainingJob) podsPerReplica() int64 {
	return max(1, j.number("spec", "workers", "podsPerReplica"))
}

func (j *trainingJob) spares() int64 { return j.number("spec", "workers", "spares") }

func (j *trainingJob) conditions() []metav1.Condition {
	var status struct {
		Conditions []metav1.Condition `json:"conditions"`
	}
	whole, _, _ := unstructured.NestedMap(j.Unstructured.Object, "status")
	// A job without a status has none.
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(whole, &status)
	return status.Conditions
}

// setDefaults sets the fields for which the API server has a default in a Workload but not in a
// TrainingJob. Kueue compares the two.
func setDefaults(containers []corev1.Container) {
	for i := range containers {
		container := &containers[i]
		for port := range container.Ports {
			container.Ports[port].Protocol = cmp.Or(container.Ports[port].Protocol, corev1.ProtocolTCP)
		}
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe, container.StartupProbe} {
			if probe != nil && probe.GRPC != nil && probe.GRPC.Service == nil {
				probe.GRPC.Service = ptr.To("")
			}
		}
	}
}

func (j *trainingJob) template() (*corev1.PodTemplateSpec, error) {
	template := &corev1.PodTemplateSpec{}
	whole, _, err := unstructured.NestedMap(j.Unstructured.Object, "spec", "workers", "template")
	if err == nil && whole != nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(whole, template)
	}
	return template, err
}

// setTemplate writes only the fields that Kueue changes. It removes mappings that are empty
// afterwards, because the owner may not have written them.
func (j *trainingJob) setTemplate(template *corev1.PodTemplateSpec) error {
	whole, err := runtime.DefaultUnstructuredConverter.ToUnstructured(template)
	if err != nil {
		return err
	}
	for _, path := range [][]string{
		{"metadata", "labels"}, {"metadata", "annotations"},
		{"spec", "nodeSelector"}, {"spec", "tolerations"}, {"spec", "schedulingGates"},
	} {
		own := append([]string{"spec", "workers", "template"}, path...)
		if value, found, _ := unstructured.NestedFieldCopy(whole, path...); found {
			j.set(value, own...)
		} else {
			unstructured.RemoveNestedField(j.Unstructured.Object, own...)
		}
	}
	for _, path := range [][]string{{"metadata"}, {"spec"}, {}} {
		own := append([]string{"spec", "workers", "template"}, path...)
		if left, found, _ := unstructured.NestedMap(j.Unstructured.Object, own...); found && len(left) == 0 {
			unstructured.RemoveNestedField(j.Unstructured.Object, own...)
		}
	}
	return nil
}

func (j *trainingJob) number(path ...string) int64 {
	number, _, _ := unstructured.NestedInt64(j.Unstructured.Object, path...)
	return number
}

func (j *trainingJob) set(value any, path ...string) {
	// It fails only if a field on the path is no object, and the API server refuses such a job.
	_ = unstructured.SetNestedField(j.Unstructured.Object, value, path...)
}
