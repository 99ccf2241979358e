//! The transports that NCCL has chosen, from its log with `NCCL_DEBUG=INFO`.

use std::collections::BTreeMap;

/// The transport of a connection. A closed set, for labels of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// From GPU to GPU, over `NVLink` or `PCIe`.
    PeerToPeer,
    /// Through memory of the host.
    SharedMemory,
    /// `InfiniBand` or `RoCE`, from GPU to network card.
    InfiniBandDirect,
    /// `InfiniBand` or `RoCE`, through memory of the host.
    InfiniBand,
    /// A plugin of the network's vendor, from GPU to network card.
    PluginDirect,
    /// A plugin of the network's vendor, through memory of the host.
    Plugin,
    Socket,
}

impl Transport {
    /// The name in NCCL's log, without the number of the network card.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PeerToPeer => "P2P",
            Self::SharedMemory => "SHM",
            Self::InfiniBandDirect => "NET/IB/GDRDMA",
            Self::InfiniBand => "NET/IB",
            Self::PluginDirect => "NET/plugin/GDRDMA",
            Self::Plugin => "NET/plugin",
            Self::Socket => "NET/Socket",
        }
    }

    /// Parses the text after `via` in a line about a channel: `NET/IB/0/GDRDMA`, `P2P/CUMEM`,
    /// `SHM/direct/direct`.
    fn of_route(route: &str) -> Option<Self> {
        let mut parts = route.split('/');
        let (kind, network) = (parts.next()?, parts.next());
        let is_direct = parts.any(|part| part.starts_with("GDRDMA"));
        Some(match (kind, network) {
            ("P2P", _) => Self::PeerToPeer,
            ("SHM", _) => Self::SharedMemory,
            ("NET", Some("Socket")) => Self::Socket,
            // NVIDIA's own plugin is named IBext, with a version.
            ("NET", Some(name)) if name.starts_with("IB") && is_direct => Self::InfiniBandDirect,
            ("NET", Some(name)) if name.starts_with("IB") => Self::InfiniBand,
            ("NET", _) if is_direct => Self::PluginDirect,
            ("NET", _) => Self::Plugin,
            _ => return None,
        })
    }
}

/// The transports of one rank's groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transports {
    /// Number of connections by transport.
    pub connections: BTreeMap<Transport, usize>,
    /// The network that NCCL has found, under NCCL's name, whether or not a connection needs it.
    pub network: Option<String>,
}

impl Transports {
    /// Parses NCCL's log. Lines of other kinds are ignored.
    #[must_use]
    pub fn parse(log: &str) -> Self {
        let mut found = Self::default();
        for line in log.lines() {
            let Some((_, words)) = line.split_once("NCCL INFO ") else {
                continue;
            };
            if let Some(network) = words.strip_prefix("Using network ") {
                found.network = Some(network.trim().to_owned());
            } else if words.starts_with("Channel ")
                && let Some((_, route)) = words.split_once(" via ")
                && let Some(transport) = Transport::of_route(route.trim())
            {
                *found.connections.entry(transport).or_default() += 1;
            }
        }
        found
    }

    /// Renders a log line: `NET/IB/GDRDMA (16 connections), P2P (8 connections); network IB`.
    /// `None`: there is no connection.
    #[must_use]
    pub fn to_line(&self) -> Option<String> {
        let Self {
            connections,
            network,
        } = self;
        if connections.is_empty() {
            return None;
        }
        let each = connections.iter().map(|(transport, number)| {
            let noun = if *number == 1 {
                "connection"
            } else {
                "connections"
            };
            format!("{} ({number} {noun})", transport.as_str())
        });
        let each: Vec<String> = each.collect();
        let network = network.as_ref().map(|name| format!("; network {name}"));
        Some(each.join(", ") + &network.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
