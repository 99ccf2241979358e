// Command kueue admits TrainingJobs through Kueue, by their field spec.suspend.
//
// For each TrainingJob with the label kueue.x-k8s.io/queue-name it makes a Workload. When Kueue admits that, the job is resumed
// with the number of workers and on the nodes that Kueue has chosen. When Kueue takes the quota back, the job is suspended: it
// saves a checkpoint, leaves its nodes, and waits in the queue again.
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
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/controller/jobframework"
)

func main() {
	probes := flag.String("health-probe-bind-address", ":8081", "`address` of /healthz; 0 for none")
	metrics := flag.String("metrics-bind-address", "0", "`address` of /metrics; 0 for none")
	elect := flag.Bool("leader-elect", false, "for more than one replica: only one of them acts")
	flag.Parse()
	ctrl.SetLogger(zap.New())
	if err := run(ctrl.SetupSignalHandler(), *probes, *metrics, *elect); err != nil {
		ctrl.Log.Error(err, "cannot go on")
		os.Exit(1)
	}
}

func run(ctx context.Context, probes, metrics string, elect bool) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kueue.AddToScheme(scheme))
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		HealthProbeBindAddress: probes,
		Metrics:                metricsserver.Options{BindAddress: metrics},
		LeaderElection:         elect,
		LeaderElectionID:       "roundhouse-kueue",
	})
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
	reconciler, err := newReconciler(ctx, manager.GetClient(), manager.GetFieldIndexer(), events)
	if err != nil {
		return err
	}
	if err := reconciler.SetupWithManager(manager); err != nil {
		return err
	}
	return manager.Start(ctx)
}
