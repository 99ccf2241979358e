//! The page of `ui`: a small HTTP server for one user of this machine. It reads and never writes.
//!
//! A request passes the [`guard`], is routed by the [`server`], and answered from [`assets`] or by the [`desk`], which
//! asks the [`origin`] (a cluster, or the directory of a run) as seldom as it can.

mod assets;
mod desk;
mod document;
mod guard;
pub(crate) mod origin;
mod server;
mod story;
#[cfg(test)]
mod tests;

pub(crate) use desk::Desk;
pub(crate) use guard::Guard;
pub(crate) use server::serve;
