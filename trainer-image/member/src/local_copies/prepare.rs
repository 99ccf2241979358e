//! Prepares the copies of a process that starts.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

use roundhouse_contract::environment::LocalCopiesEnvironment;
use roundhouse_contract::ports;
use roundhouse_report::say_error;

use super::directory::Directory;
use super::holder::Pairs;
use super::holding::Holding;
use super::pods::Pods;
use super::{LocalCopies, writer};
use crate::checkpoint::Identity;
use crate::failure::Failure;
use crate::launch::{Launch, Source};
use crate::state::Table;

impl LocalCopies {
    /// Starts the threads if the launch asks for copies. What an earlier process has not completed
    /// is removed.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses a thread, [`Failure::Io`] if the port
    /// on which this process serves its copies is in use.
    pub(crate) fn prepare(
        launch: &Launch,
        identity: &Identity,
        table: &Table,
    ) -> Result<Option<Self>, Failure> {
        let checkpoint = launch.checkpoint.as_ref();
        let Some(settings) = checkpoint.and_then(|it| it.local.clone()) else {
            return Ok(None);
        };
        let (local_rank, procs) = (launch.local_rank, launch.local_world_size);
        let directory = Directory::new(settings.dir.clone());
        // The shards of the processes with this local rank in all pods.
        if let Err(error) = directory.remove_partial(|shard| shard % procs == local_rank) {
            say_error(&format!("{}: {error}", directory.root().display()));
        }
        let replica = launch.replica_pods.as_ref();
        let start =
            |replica| Pods::start(replica, local_rank, directory.clone(), settings.max_bytes);
        let pods = replica.map(start).transpose()?;
        let holding = hold_for_others(launch, &settings, &directory)?;
        let (requests, received) = channel();
        let (done, results) = channel();
        let is_discarded = Arc::new(AtomicBool::new(false));
        let discarded = Arc::clone(&is_discarded);
        let serve = move || writer::serve(&received, &done, &discarded);
        std::thread::Builder::new()
            .name("local-copies".to_owned())
            .spawn(serve)
            .map_err(|error| Failure::Internal(format!("the thread of local copies: {error}")))?;
        Ok(Some(Self {
            settings,
            directory,
            local_rank,
            local_world_size: procs,
            pods,
            pairs: Pairs::new(local_rank),
            holding,
            training: identity.hash(table),
            requests,
            results,
            buffer: None,
            is_shared: false,
            num_requested: 0,
            has_failed: false,
            is_discarded,
        }))
    }
}

/// Starts the thread that takes copies of another worker, if spares of this job hold copies.
fn hold_for_others(
    launch: &Launch,
    settings: &LocalCopiesEnvironment,
    directory: &Directory,
) -> Result<Option<Holding>, Failure> {
    let Source::Membership { own_address, .. } = &launch.source else {
        return Ok(None);
    };
    let Some(file) = settings.pair_file.clone() else {
        return Ok(None);
    };
    let address = ports::on(*own_address, ports::PEER_COPIES, launch.local_rank);
    let address = address.ok_or_else(|| {
        Failure::Internal(format!(
            "no port for copies of local rank {}",
            launch.local_rank
        ))
    })?;
    let started = Holding::start(file, address, directory.clone(), settings.max_bytes);
    started
        .map(Some)
        .map_err(|error| Failure::Internal(format!("the thread of held copies: {error}")))
}
