//! Everything that operator, agent and trainer agree on: documents, names, ports, exit codes.
//!
//! These strings occur nowhere else in the code. The crate depends only on serde and its helpers,
//! so that both a static agent and a program with libtorch can contain it.

pub mod best;
pub mod built_from;
mod closed_enum;
pub mod copy_pair;
mod counter;
pub mod earlier;
pub mod environment;
pub mod exit_code;
pub mod gang;
pub mod labels;
pub mod membership;
pub mod mode;
pub mod names;
pub mod paths;
pub mod ports;
pub mod process_restarts;
pub mod progress;
pub mod rank_status;
pub mod repeat;
pub mod replica_place;
pub mod scale;
pub mod termination;
pub mod trace;
pub mod trainer;

pub use best::{BestCheckpoint, BestMetric};
pub use built_from::BuiltFrom;
pub use copy_pair::{CopyPair, CopyRole, HeldCopy};
pub use environment::{
    ExpectedDevice, LaunchEnvironment, ScriptEnvironment, WorkerEnvironment, WorkerProgram,
    WorkerSite,
};
pub use exit_code::ExitCode;
pub use membership::{Action, Incarnation, Master, Membership, MembershipError, PROTOCOL};
pub use mode::Mode;
pub use process_restarts::{ProcessEnd, ProcessRestarts};
pub use progress::{Formed, Progress, ProgressReport, ScriptProgress, Straggler};
pub use rank_status::{Phase, RankStatus};
pub use repeat::{Repeat, RepeatSource};
pub use replica_place::ReplicaPlace;
pub use scale::{OnScale, RateRule, ScaleBatch};
pub use termination::{Reason, TerminationMessage};
pub use trace::TraceRequest;
pub use trainer::TrainerConfig;
