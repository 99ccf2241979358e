//! Environment variables of a process whose replica has several pods.

use super::{
    EnvironmentInvalid, REPLICA_ADDRESSES, REPLICA_HOLDERS, REPLICA_LIFE, REPLICA_POD,
    REPLICA_STORE_PORT,
};
use crate::{ReplicaPlace, ports};

/// What stands for a pod without a holder.
const NO_HOLDER: &str = "-";

/// The pods of a replica, and this one's place among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPods {
    /// Identifier of the replica's life.
    pub life: String,
    /// Index of this pod in the replica.
    pub pod: u32,
    /// IP addresses of all pods of the replica, by their index in it.
    pub addresses: Vec<String>,
    /// For each pod the index of the pod that holds second copies of its part of the state, see
    /// [`ReplicaPlace::holders`].
    pub holders: Vec<Option<u32>>,
}

impl ReplicaPods {
    /// The pods of a document.
    #[must_use]
    pub fn of(place: &ReplicaPlace) -> Self {
        Self {
            life: place.life.clone(),
            pod: place.pod,
            addresses: place.addresses.clone(),
            holders: place.holders.clone(),
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
        let holder = |holder: &Option<u32>| {
            holder.map_or_else(|| NO_HOLDER.to_owned(), |pod| pod.to_string())
        };
        let holders: Vec<String> = self.holders.iter().map(holder).collect();
        vec![
            (REPLICA_LIFE, self.life.clone()),
            (REPLICA_POD, self.pod.to_string()),
            (REPLICA_ADDRESSES, self.addresses.join(",")),
            (REPLICA_HOLDERS, holders.join(",")),
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
        let is_pod = |pod: &u32| (*pod as usize) < addresses.len();
        let holders = get(REPLICA_HOLDERS).unwrap_or_default();
        let holders: Option<Vec<Option<u32>>> = (holders.split(','))
            .filter(|text| !text.is_empty())
            .map(|text| match text {
                NO_HOLDER => Some(None),
                text => text.parse().ok().filter(is_pod).map(Some),
            })
            .collect();
        let all = |holders: &Vec<_>| holders.is_empty() || holders.len() == addresses.len();
        let holders = holders.filter(all).ok_or_else(|| EnvironmentInvalid {
            variable: REPLICA_HOLDERS,
            found: get(REPLICA_HOLDERS),
        })?;
        let found = text(REPLICA_POD)?;
        let pod = found.parse().ok();
        let pod = pod.filter(is_pod);
        Ok(Some(Self {
            life: text(REPLICA_LIFE)?,
            pod: pod.ok_or(EnvironmentInvalid {
                variable: REPLICA_POD,
                found: Some(found),
            })?,
            addresses,
            holders,
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

    fn two_pods(holders: &[Option<u32>]) -> ReplicaPods {
        ReplicaPods {
            life: "a1".to_owned(),
            pod: 1,
            addresses: vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()],
            holders: holders.to_vec(),
        }
    }

    #[test]
    fn pods_of_a_replica_round_trip() {
        for holders in [&[][..], &[Some(1), Some(0)], &[Some(1), None]] {
            let pods = two_pods(holders);
            assert_eq!(read(&pods.to_pairs()), Ok(Some(pods.clone())));
        }
        assert_eq!(read(&[]), Ok(None));
    }

    #[test]
    fn holders_that_are_no_pods_of_the_replica_are_refused() {
        for holders in [&[Some(1), Some(2)][..], &[Some(1)]] {
            let refused = read(&two_pods(holders).to_pairs()).unwrap_err();
            assert_eq!(refused.variable, REPLICA_HOLDERS, "{holders:?}");
        }
    }

    #[test]
    fn place_outside_of_the_replica_is_named() {
        let mut pairs = ReplicaPods {
            pod: 2,
            ..two_pods(&[])
        }
        .to_pairs();
        assert_eq!(read(&pairs).unwrap_err().variable, REPLICA_POD);
        pairs.retain(|(name, _)| *name != REPLICA_POD);
        assert_eq!(read(&pairs).unwrap_err().found, None);
    }
}
