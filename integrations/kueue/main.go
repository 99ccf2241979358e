// Command kueue admits TrainingJobs through Kueue, by their field spec.suspend.
//
// It creates a Workload for each TrainingJob with the label kueue.x-k8s.io/queue-name. When Kueue
// admits the Workload, this controller resumes the job with the number of workers and on the nodes
// that Kueue has chosen. When Kueue takes the quota back, it suspends the job: the job saves a
// checkpoint, leaves its nodes, and waits in the queue again.
package main

import (
	"context"
	"flag"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	configapi "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
)

func main() {
	probes := flag.String("health-probe-bind-address", ":8081", "`address` of /healthz; 0 for none")
	metrics := flag.String("metrics-bind-address", "0", "`address` of /metrics; 0 for none")
	elect := flag.Bool("leader-elect", false, "elect a leader, for more than one replica")
	leases := flag.String("leader-elect-namespace", "", "`namespace` of the Lease; default: that of the pod")
	wait := flag.Bool("wait-for-pods-ready", false, "report to Kueue when a job trains; required if Kueue's configuration has waitForPodsReady")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	options := ctrl.Options{
		HealthProbeBindAddress:  *probes,
		Metrics:                 metricsserver.Options{BindAddress: *metrics},
		LeaderElection:          *elect,
		LeaderElectionID:        "roundhouse-kueue",
		LeaderElectionNamespace: *leases,
	}
	if err := run(ctrl.SetupSignalHandler(), options, *wait); err != nil {
		ctrl.Log.Error(err, "the controller stops")
		os.Exit(1)
	}
}

func run(ctx context.Context, options ctrl.Options, waitForPodsReady bool) error {
	options.Scheme = runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(options.Scheme))
	utilruntime.Must(kueue.AddToScheme(options.Scheme))
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	if err := manager.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return err
	}
	if err := jobframework.SetupWorkloadOwnerIndex(ctx, manager.GetFieldIndexer(), kind); err != nil {
		return err
	}
	events := manager.GetEventRecorderFor("roundhouse-kueue")
	newReconciler := jobframework.NewGenericReconcilerFactory(newJob)
	var own []jobframework.Option
	if waitForPodsReady {
		own = append(own, jobframework.WithWaitForPodsReady(&configapi.WaitForPodsReady{}))
	}
	reconciler, err := newReconciler(ctx, manager.GetClient(), manager.GetFieldIndexer(), events, own...)
	if err != nil {
		return err
	}
	if err := reconciler.SetupWithManager(manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}
