//! `roundhouse-train audit --compare A B`: whether two trainings are the same, bit for bit.

use std::collections::BTreeMap;
use std::path::Path;

use roundhouse_contract::ExitCode;
use roundhouse_elastic::audit::{Comparison, compare};
use roundhouse_elastic::ledger::Line;
use roundhouse_elastic::{CheckpointId, Digest};
use roundhouse_member::checkpoint::load::{self, Message};
use roundhouse_member::checkpoint::{Directory, Manifest, VolumeError};
use roundhouse_report::{say, say_error};
use sha2::{Digest as _, Sha256};

use super::Unproven;
use super::read::record;

/// Compares the ledgers below two checkpoint directories and the newest checkpoints of one step.
/// Prints the result in one line.
#[must_use]
pub fn run(left: &Path, right: &Path) -> ExitCode {
    match verdict(left, right) {
        Ok((is_equal, words)) => {
            say(&words);
            if is_equal {
                ExitCode::Done
            } else {
                ExitCode::DataInvalid
            }
        }
        Err(reason) => {
            say_error(&format!("not compared: {reason}"));
            ExitCode::DataInvalid
        }
    }
}

fn verdict(left: &Path, right: &Path) -> Result<(bool, String), Unproven> {
    let directories = [left, right].map(|dir| Directory::new(dir.to_owned()));
    let [left, right] = [record(&directories[0])?, record(&directories[1])?];
    let (histories, digest) = match compare(left.files, right.files)? {
        Comparison::Equal { histories, digest } => (histories, digest),
        Comparison::OtherTraining => {
            let words = "different: the trainings have other data, another batch or another seed";
            return Ok((false, words.to_owned()));
        }
        Comparison::Differs { step, lines } => return Ok((false, difference(step, lines))),
    };
    let num_steps = histories.each_ref().map(|lines| lines.len() as u64);
    let steps = num_steps[0].min(num_steps[1]);
    if steps == 0 {
        return Err(Unproven::NothingInCommon(num_steps));
    }
    let equal =
        format!("equal bit for bit: samples and losses of {steps} steps (SHA-256 {digest})");
    let equal = if num_steps[0] == num_steps[1] {
        equal
    } else {
        let [own, other] = num_steps;
        format!("{equal} of the {own} and {other} that they have")
    };
    let Some((step, ids)) = common(&directories, &histories)? else {
        let words = "weights were not compared, because no step has a checkpoint in both";
        return Ok((true, format!("{equal}; {words}")));
    };
    let [own, other] = [
        weights(&directories[0], ids[0])?,
        weights(&directories[1], ids[1])?,
    ];
    Ok(if own == other {
        (
            true,
            format!("{equal}, and the state after step {step} (SHA-256 {own})"),
        )
    } else {
        let words = format!(
            "different: samples and losses of {steps} steps are equal, but not the state after step {step} \
             (SHA-256 {own} and {other})"
        );
        (false, words)
    })
}

fn difference(step: u64, [left, right]: [Line; 2]) -> String {
    let samples = |line: &Line| (line.epoch, line.start, line.end);
    if samples(&left) == samples(&right) && left.skipped != right.skipped {
        let words = |line: &Line| if line.skipped { "skipped" } else { "updated" };
        return format!(
            "different from step {step} on: {} and {}",
            words(&left),
            words(&right)
        );
    }
    if samples(&left) == samples(&right) {
        let losses = [left.loss, right.loss];
        return format!(
            "different from step {step} on: losses {} and {}",
            losses[0], losses[1]
        );
    }
    let words = |line: &Line| format!("places {}-{} of epoch {}", line.start, line.end, line.epoch);
    format!(
        "different from step {step} on: {} and {}",
        words(&left),
        words(&right)
    )
}

/// The newest step of both histories for which both directories have a checkpoint. A checkpoint of
/// a superseded generation holds another state of the same step, so it does not count.
fn common(
    directories: &[Directory; 2],
    histories: &[Vec<Line>; 2],
) -> Result<Option<(u64, [CheckpointId; 2])>, VolumeError> {
    let lists = [directories[0].steady_list()?, directories[1].steady_list()?];
    let pairs = histories[0].iter().zip(&histories[1]);
    let mut pairs = pairs.map(|(own, other)| [own, other].map(|it| CheckpointId::of(&it.head())));
    let has = |[own, other]: &[CheckpointId; 2]| lists[0].contains(own) && lists[1].contains(other);
    Ok(pairs.rfind(has).map(|ids| (ids[0].step, ids)))
}

/// Digest of the whole state of a checkpoint. It does not depend on the number of ranks that saved
/// the checkpoint.
fn weights(directory: &Directory, id: CheckpointId) -> Result<Digest, Unproven> {
    let manifest = Manifest::read(&directory.checkpoint(id))?;
    let parts = load::read(directory, manifest)
        .map_err(|failure| Unproven::NoWeights(failure.to_string()))?;
    let mut hasher = Sha256::new();
    // The parts of replicas are not in the order of the state. Bytes wait for those before them.
    let mut early = BTreeMap::new();
    let mut end = 0;
    for message in parts {
        match message {
            Message::Bytes(bytes) => {
                early.extend(bytes.runs().map(|(offset, run)| (offset, run.to_vec())));
                while let Some(bytes) = early.remove(&end) {
                    end += bytes.len() as u64;
                    hasher.update(&bytes);
                }
            }
            Message::Whole => {
                return Ok(Digest::from_bytes(hasher.finalize().into()));
            }
            Message::Damaged(volume_error) => return Err(volume_error.into()),
        }
    }
    Err(Unproven::NoWeights(
        "the thread that reads a checkpoint has ended".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::ledger::{Chain, Head, Header, LedgerIdentity, file_name};
    use roundhouse_elastic::{Batch, DataSchedule};

    use super::*;

    /// A checkpoint directory with a ledger of `num_steps` steps (at most 10) of 10 samples each.
    fn trained(num_steps: u64) -> tempfile::TempDir {
        let identity = LedgerIdentity::of(&DataSchedule::of_steps(100, 10, 10), 7);
        let mut chain = Chain::from(Head::start(&identity));
        for step in 1..=num_steps {
            let batch = Batch {
                step,
                epoch: 0,
                places: 10 * (step - 1)..10 * step,
                ends_epoch: step == 10,
            };
            chain.push(chain.head().next(&batch, 1, 0.5));
        }
        let header = Header {
            generation: 1,
            previous: None,
            identity,
            start: None,
        };
        let lines = chain.lines().iter().map(Line::to_text);
        let text: String = std::iter::once(header.to_text()).chain(lines).collect();
        let directory = tempfile::tempdir().unwrap();
        let ledger = Directory::new(directory.path().to_owned()).ledger();
        std::fs::create_dir_all(&ledger).unwrap();
        std::fs::write(ledger.join(file_name(1)), text).unwrap();
        directory
    }

    #[test]
    fn superseded_checkpoints_are_not_compared() {
        let trainings = [trained(3), trained(3)];
        let directories = trainings
            .each_ref()
            .map(|root| Directory::new(root.path().to_owned()));
        let line = |generation, step| {
            let batch = Batch {
                step,
                epoch: 0,
                places: 0..10,
                ends_epoch: false,
            };
            let identity = LedgerIdentity::of(&DataSchedule::of_steps(100, 10, 10), 7);
            Head::start(&identity).next(&batch, generation, 0.5)
        };
        let id = |generation, step| CheckpointId { generation, step };
        for (directory, ids) in [
            (&directories[0], [id(1, 2), id(2, 2), id(1, 3)]),
            (&directories[1], [id(1, 2), id(4, 2), id(4, 3)]),
        ] {
            for id in ids {
                std::fs::create_dir_all(directory.checkpoint(id)).unwrap();
            }
        }
        let own = vec![line(1, 1), line(2, 2), line(2, 3)];
        let other = vec![line(1, 1), line(1, 2), line(4, 3)];
        let found = common(&directories, &[own, other]).unwrap();
        assert_eq!(found, Some((2, [id(2, 2), id(1, 2)])));
    }

    #[test]
    fn trainings_without_common_steps_are_not_compared() {
        let found = verdict(trained(0).path(), trained(5).path());
        let error = found.unwrap_err();
        assert!(
            matches!(error, Unproven::NothingInCommon([0, 5])),
            "{error}"
        );
    }

    #[test]
    fn verdict_counts_steps_and_reports_missing_weights() {
        let (is_equal, words) = verdict(trained(3).path(), trained(5).path()).unwrap();
        assert!(is_equal, "{words}");
        for part in ["3 steps", "of the 3 and 5", "weights were not compared"] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}
