//! Stores and process groups of c10d behind the rendezvous traits of `roundhouse-member`.

use std::net::IpAddr;
use std::time::Duration;

use roundhouse_c10d::{GroupOptions, ProcessGroup, Store};
use roundhouse_member::failure::Failure;
use roundhouse_member::rendezvous::{self, Network, Ranks};
use tch::Device;

use crate::device;
use crate::failure::lost;
use crate::group::C10dGroup;

/// The rendezvous of this process, over stores of c10d.
pub type StoreRendezvous = rendezvous::StoreRendezvous<C10d>;

/// Creates stores and process groups of c10d.
#[derive(Clone, Copy, Debug)]
pub struct C10d {
    device: Device,
    num_shards: u32,
}

impl C10d {
    /// Groups of ranks that compute on this device.
    #[must_use]
    pub const fn on(device: Device) -> Self {
        Self {
            device,
            num_shards: 1,
        }
    }

    /// Each group also has a [column](C10dGroup::column): replicas have this number of consecutive
    /// ranks.
    #[must_use]
    pub const fn in_replicas_of(self, num_shards: u32) -> Self {
        Self { num_shards, ..self }
    }
}

/// A key-value store of c10d.
#[derive(Debug)]
pub struct C10dStore(Store);

impl rendezvous::Store for C10dStore {
    fn add(&self, key: &str, amount: i64) -> Result<i64, Failure> {
        self.0.add(key, amount).map_err(lost)
    }

    fn part(&self, name: &str) -> Result<Self, Failure> {
        self.0.prefix(name).map(Self).map_err(lost)
    }

    fn set_timeout(&self, timeout: Duration) -> Result<(), Failure> {
        self.0.set_timeout(timeout).map_err(lost)
    }

    fn clear(&self) -> Result<(), Failure> {
        self.0.clear().map(|_| ()).map_err(lost)
    }

    fn port(&self) -> u16 {
        self.0.port()
    }
}

impl Network for C10d {
    type Store = C10dStore;
    type Group = C10dGroup;

    fn host(&self, address: IpAddr, port: u16, timeout: Duration) -> Result<C10dStore, Failure> {
        let store = Store::host_at(address, port, timeout);
        store.map(C10dStore).map_err(lost)
    }

    fn dial(&self, address: &str, port: u16, timeout: Duration) -> Result<C10dStore, Failure> {
        let store = Store::connect(address, port, timeout);
        store.map(C10dStore).map_err(lost)
    }

    fn connect(&self, store: C10dStore, ranks: &Ranks) -> Result<C10dGroup, Failure> {
        let Ranks {
            generation,
            rank,
            size,
            timeout,
            address,
            own_store_port,
        } = *ranks;
        let connect = |store: &Store, name: String, rank, size| {
            let options = GroupOptions {
                backend: device::backend(self.device),
                timeout,
                address,
                own_store_port,
                name,
            };
            let group = ProcessGroup::new(store, rank, size, &options).map_err(lost)?;
            Ok(C10dGroup::new(group, self.device))
        };
        let name = format!("gen{generation}");
        let num_replicas = size / self.num_shards;
        if self.num_shards == 1 || num_replicas == 1 {
            return connect(&store.0, name, rank, size);
        }
        let (replica, shard) = (rank / self.num_shards, rank % self.num_shards);
        let part = store.0.prefix(&format!("column{shard}")).map_err(lost)?;
        let column = connect(
            &part,
            format!("{name}/column{shard}"),
            replica,
            num_replicas,
        )?;
        Ok(connect(&store.0, name, rank, size)?.with_column(column))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use roundhouse_member::rendezvous::Store as _;

    use super::*;

    #[test]
    fn clearing_a_part_of_a_store_keeps_the_rest() {
        let (c10d, patience) = (C10d::on(Device::Cpu), Duration::from_secs(10));
        let host = c10d.host(Ipv4Addr::LOCALHOST.into(), 0, patience).unwrap();
        let guest = c10d.dial("127.0.0.1", host.port(), patience).unwrap();
        assert_eq!(guest.add("all", 2).unwrap(), 2);
        assert_eq!(guest.part("gen1").unwrap().add("arrived", 1).unwrap(), 1);
        let keys = host.0.num_keys().unwrap();
        host.part("gen1").unwrap().clear().unwrap();
        assert_eq!(host.0.num_keys().unwrap(), keys - 1);
        assert_eq!(host.add("all", 0).unwrap(), 2);
    }
}
