//! Environment variables of a process whose replica has several pods.

use super::{EnvironmentInvalid, REPLICA_ADDRESSES, REPLICA_LIFE, REPLICA_POD, REPLICA_STORE_PORT};
use crate::{ReplicaPlace, ports};

/// The pods of a replica, and this one's place among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPods {
    /// Identifier of the replica's life.
    pub life: String,
    /// Index of this pod in the replica.
    pub pod: u32,
    /// IP addresses of all pods of the replica, by their index in it.
    pub addresses: Vec<String>,
}

impl ReplicaPods {
    /// The pods of a document.
    #[must_use]
    pub fn of(place: &ReplicaPlace) -> Self {
        Self {
            life: place.life.clone(),
            pod: place.pod,
            addresses: place.addresses.clone(),
        }
    }

    /// Number of pods of the replica.
    #[must_use]
    pub fn num_pods(&self) -> u32 {
        u32::try_from(self.addresses.len()).unwrap_or(u32::MAX)
    }

    /// Names and values for a process to start.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        vec![
            (REPLICA_LIFE, self.life.clone()),
            (REPLICA_POD, self.pod.to_string()),
            (REPLICA_ADDRESSES, self.addresses.join(",")),
            // Only scripts need it: the built-in trainer sends it over its connections.
            (REPLICA_STORE_PORT, ports::REPLICA_STORE.to_string()),
        ]
    }

    /// Reads the variables through `get`; `None` if the replica has one pod.
    ///
    /// # Errors
    /// [`EnvironmentInvalid`] with the first variable that is missing or cannot be parsed.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, EnvironmentInvalid> {
        let text = |variable: &'static str| {
            get(variable)
                .filter(|text| !text.is_empty())
                .ok_or(EnvironmentInvalid {
                    variable,
                    found: None,
                })
        };
        let Ok(addresses) = text(REPLICA_ADDRESSES) else {
            return Ok(None);
        };
        let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
        let found = text(REPLICA_POD)?;
        let pod = found.parse().ok();
        let pod = pod.filter(|pod: &u32| (*pod as usize) < addresses.len());
        Ok(Some(Self {
            life: text(REPLICA_LIFE)?,
            pod: pod.ok_or(EnvironmentInvalid {
                variable: REPLICA_POD,
                found: Some(found),
            })?,
            addresses,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, String)]) -> Result<Option<ReplicaPods>, EnvironmentInvalid> {
        ReplicaPods::read(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn pods_of_a_replica_round_trip() {
        let pods = ReplicaPods {
            life: "a1".to_owned(),
            pod: 1,
            addresses: vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()],
        };
        assert_eq!(read(&pods.to_pairs()), Ok(Some(pods.clone())));
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn place_outside_of_the_replica_is_named() {
        let mut pairs = ReplicaPods {
            life: "a1".to_owned(),
            pod: 1,
            addresses: vec!["10.0.0.1".to_owned()],
        }
        .to_pairs();
        assert_eq!(read(&pairs).unwrap_err().variable, REPLICA_POD);
        pairs.retain(|(name, _)| *name != REPLICA_POD);
        assert_eq!(read(&pairs).unwrap_err().found, None);
    }
}
