//! Conditions: their types, and which of them matters most.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::TrainingJobStatus;

/// Types of a job's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionType {
    /// The operator accepted the spec.
    Accepted,
    /// All members of a generation are alive.
    Running,
    /// `spec.suspend` is true, and the workers are gone or about to go.
    Suspended,
    /// All members completed successfully. Terminal.
    Succeeded,
    /// The job failed permanently. Terminal.
    Failed,
}

impl ConditionType {
    /// The type as the object contains it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "Accepted",
            Self::Running => "Running",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

impl TrainingJobStatus {
    /// The condition of a type, if it was ever set.
    #[must_use]
    pub fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        self.conditions
            .iter()
            .find(|condition| condition.type_ == kind.as_str())
    }

    /// The condition that matters most now, independent of their order in the list: how the job
    /// ended, or else what it does or waits for, or else whether it is accepted.
    #[must_use]
    pub fn front(&self) -> Option<&Condition> {
        let ends = [ConditionType::Succeeded, ConditionType::Failed];
        let end = ends.into_iter().find(|kind| self.is_true(*kind));
        let first = self.condition(end.unwrap_or(ConditionType::Running));
        first.or_else(|| self.condition(ConditionType::Accepted))
    }

    /// The state in one word. It also works for a status without [`Self::state`], which an older
    /// operator wrote. Empty before the operator has seen the job.
    #[must_use]
    pub fn state(&self) -> &str {
        let front = || self.front().map(|front| front.reason.as_str());
        self.state.as_deref().or_else(front).unwrap_or_default()
    }

    /// Whether a condition is set and true.
    #[must_use]
    pub fn is_true(&self, kind: ConditionType) -> bool {
        self.condition(kind)
            .is_some_and(|condition| condition.status == "True")
    }

    /// Whether the job has succeeded or failed.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.is_true(ConditionType::Succeeded) || self.is_true(ConditionType::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(conditions: &[(ConditionType, &str, &str)]) -> TrainingJobStatus {
        let conditions = conditions.iter().map(|(kind, status, reason)| {
            serde_json::json!({"type": kind.as_str(), "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let conditions: Vec<_> = conditions.collect();
        serde_json::from_value(serde_json::json!({"conditions": conditions})).unwrap()
    }

    #[test]
    fn state_does_not_depend_on_order_of_conditions() {
        use ConditionType::{Accepted, Failed, Running, Suspended};
        let accepted = (Accepted, "True", "Valid");
        let resumed = (Suspended, "False", "Resumed");
        let cases = [
            (vec![], ""),
            (vec![accepted], "Valid"),
            (
                vec![accepted, resumed, (Running, "True", "Training")],
                "Training",
            ),
            (
                vec![(Running, "False", "Forming"), resumed, accepted],
                "Forming",
            ),
            (
                vec![
                    accepted,
                    (Running, "False", "Old"),
                    (Failed, "True", "DataInvalid"),
                ],
                "DataInvalid",
            ),
        ];
        for (conditions, expected) in cases {
            let mut status = status(&conditions);
            for _ in 0..=conditions.len() {
                assert_eq!(status.state(), expected, "{conditions:?}");
                if !conditions.is_empty() {
                    status.conditions.rotate_left(1);
                }
            }
        }
    }
}
