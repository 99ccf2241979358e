//! The watches: the caches that they fill, what these keep of each object, and whether a cache is
//! too old to act on.

pub mod cache;
pub mod caches;
pub mod client;
pub mod cordoned;
pub mod lost_nodes;
pub(crate) mod namespaces;
pub(crate) mod pauses;
pub(crate) mod pod_group_kinds;
pub mod pod_groups;
pub mod projection;
pub mod staleness;
pub(crate) mod streams;
pub mod topology;
pub mod wake;
pub(crate) mod watches;
