//! The operator's effects: caches in front, writes behind, and a pure plan in between.
//!
//! `driver` is the whole loop on one screen: observe → examine → plan → apply → report.

pub mod apply;
pub mod ask;
pub mod backoff;
pub mod cache;
pub mod calls;
pub mod check;
pub mod coalesce;
pub mod context;
pub mod cordoned;
pub mod dispatch;
pub mod driver;
pub mod error;
pub mod events;
pub mod expectations;
pub mod fair;
pub mod fresh;
mod gangs;
pub mod groups;
pub mod heard;
pub mod http;
pub mod lane;
pub mod lead;
pub mod lost_nodes;
pub mod making;
pub mod mended;
pub mod metered;
pub mod metrics;
pub mod observe;
pub mod panics;
pub mod policies;
pub mod progress;
pub mod report;
pub mod resources;
pub mod restarts;
pub mod retry_after;
pub mod run;
pub mod settings;
pub mod settling;
pub mod slim;
pub mod taken;
pub mod tasks;
pub mod topology;
pub mod unreadable;
pub mod untold;
mod watches;
