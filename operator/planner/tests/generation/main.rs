//! Which workers form the next generation, in which order, and when it is broken.
#![allow(clippy::unwrap_used)]

mod beside;
mod completed;
mod copies;
mod copy_pairs;
mod form;
mod in_place;
mod members;
mod newest_seen;
mod nonce;
mod reissue;
mod spares;
mod stranded;
mod topology;
mod victims;
