//! Lines of NCCL 2.20 to 2.28, with changed names of hosts and addresses.

use super::Transport::{
    InfiniBand, InfiniBandDirect, PeerToPeer, Plugin, PluginDirect, SharedMemory, Socket,
};
use super::*;

/// Two hosts with `InfiniBand`, two GPUs each.
const INFINIBAND: &str = "\
worker-0:193:410 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.4<0>
worker-0:193:410 [0] NCCL INFO cudaDriverVersion 13000
worker-0:193:410 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
worker-0:193:432 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
worker-0:193:432 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.4<0>
worker-0:193:432 [0] NCCL INFO Using network IB
worker-0:193:432 [0] NCCL INFO ncclCommInitRankConfig comm 0x55d0c0 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 7000 commId 0x9a3f - Init START
worker-0:193:432 [0] NCCL INFO Channel 00/02 :    0   1   2   3
worker-0:193:432 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2
worker-0:193:432 [0] NCCL INFO Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
worker-0:193:432 [0] NCCL INFO Channel 01/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
worker-0:193:432 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[0] [send] via NET/IB/0/GDRDMA/Shared
worker-0:193:432 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
worker-0:193:432 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
worker-0:193:432 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
worker-0:193:432 [0] NCCL INFO ncclCommInitRankConfig comm 0x55d0c0 rank 0 nranks 4 - Init COMPLETE
";

/// A host whose `InfiniBand` is not visible in the pod.
const SOCKETS: &str = "\
worker-1:7:19 [0] NCCL INFO NET/IB : No device found.
worker-1:7:19 [0] NCCL INFO NET/Socket : Using [0]eth0:10.140.0.12<0>
worker-1:7:19 [0] NCCL INFO Using network Socket
worker-1:7:19 [0] NCCL INFO Channel 00/0 : 17[1] -> 0[0] [receive] via NET/Socket/0
worker-1:7:19 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0

[2026-06-05 11:02:17] worker-1:7:19 [0] misc/socket.cc:480 NCCL WARN socketProgressOpt: Call to recv failed : Connection reset by peer
";

#[test]
fn the_transports_of_all_connections_are_counted() {
    let found = Transports::parse(INFINIBAND);
    let connections = BTreeMap::from([(InfiniBandDirect, 3), (PeerToPeer, 2)]);
    assert_eq!(found.connections, connections);
    assert_eq!(
        found.to_line().as_deref(),
        Some("P2P (2 connections), NET/IB/GDRDMA (3 connections); network IB")
    );
    let found = Transports::parse(SOCKETS);
    assert_eq!(found.connections, BTreeMap::from([(Socket, 2)]));
    assert_eq!(found.network.as_deref(), Some("Socket"));
}

#[test]
fn each_form_of_a_route_is_known() {
    for (route, transport) in [
        ("P2P/IPC", Some(PeerToPeer)),
        ("P2P/direct pointer/read", Some(PeerToPeer)),
        ("P2P/indirect/1[1]", Some(PeerToPeer)),
        ("SHM/direct/direct", Some(SharedMemory)),
        ("SHM/direct/direct comm 0x557519a97630", Some(SharedMemory)),
        ("NET/IB/3", Some(InfiniBand)),
        ("NET/IB/3/GDRDMA(PCI)", Some(InfiniBandDirect)),
        ("NET/IB/0/GDRDMA/flush=None", Some(InfiniBandDirect)),
        ("NET/IBext_v8/2", Some(InfiniBand)),
        ("NET/AWS Libfabric/0/GDRDMA", Some(PluginDirect)),
        ("NET/GPUDirectTCPX_v7/1", Some(Plugin)),
        ("NET/Socket/0/Shared", Some(Socket)),
        ("NVLS", None),
    ] {
        assert_eq!(Transport::of_route(route), transport, "{route}");
    }
}

#[test]
fn network_without_connection_counts_nothing() {
    for log in [
        "",
        "worker-0:7:19 [0] NCCL INFO Using network IB\n",
        "worker-0:7:19 [0] NCCL INFO Channel 00/02 :    0   1\n",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0\n",
    ] {
        assert_eq!(Transports::parse(log).to_line(), None, "{log}");
    }
}
