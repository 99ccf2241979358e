//! Checkpoints and copies of the fixture's job.

use roundhouse_api::{Checkpoint, CheckpointVolume, CopyMedium, LocalCopies};

use super::World;

impl World {
    /// Lets the job save checkpoints, and with `local` keep copies in its pods.
    pub fn saves(&mut self, local: bool) {
        self.job.checkpoint = Some(Checkpoint {
            volume: CheckpointVolume::default(),
            every_steps: None,
            every_seconds: None,
            keep: 3,
            best: None,
            local: local.then(|| LocalCopies {
                every_steps: 10,
                medium: CopyMedium::Memory,
                peer_copies: None,
                size_limit: "1Gi".to_owned(),
            }),
        });
    }

    /// Lets the pods of a replica hold copies for each other, too.
    pub fn has_peer_copies(&mut self) {
        self.saves(true);
        let checkpoint = self.job.checkpoint.as_mut();
        let local = checkpoint.and_then(|checkpoint| checkpoint.local.as_mut());
        if let Some(local) = local {
            local.peer_copies = Some(1);
        }
    }
}
