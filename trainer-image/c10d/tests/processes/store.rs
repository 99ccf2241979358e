//! The rendezvous store: where it listens, what it keeps.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpStream};
use std::time::Duration;

use roundhouse_c10d::{ErrorKind, Store};

const TIMEOUT: Duration = Duration::from_secs(5);
const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn connect(host: &str, port: u16) -> Store {
    Store::connect(host, port, TIMEOUT).unwrap()
}

#[test]
fn a_store_that_is_not_served_is_an_error_within_the_timeout() {
    let port = Store::host_at(LOCAL, 0, TIMEOUT).unwrap().port();
    let error = Store::connect("127.0.0.1", port, Duration::from_secs(1)).unwrap_err();
    assert!(error.is_peer_lost(), "{error:?}");
}

#[test]
fn a_store_keeps_values_apart_by_prefix() {
    let store = Store::host(0, TIMEOUT).unwrap();
    let other = connect("127.0.0.1", store.port());
    store.prefix("gen1").unwrap().set("key", b"one").unwrap();
    other.prefix("gen2").unwrap().set("key", b"two").unwrap();
    assert_eq!(other.prefix("gen1").unwrap().get("key").unwrap(), b"one");
    assert_eq!(store.add("count", 2).unwrap(), 2);
    assert_eq!(other.add("count", 3).unwrap(), 5);
    assert_eq!(store.set("a\0b", b"").unwrap_err().kind, ErrorKind::Other);
}

#[test]
fn a_taken_port_is_an_error() {
    let store = Store::host(0, TIMEOUT).unwrap();
    assert!(Store::host(store.port(), TIMEOUT).is_err());
    let store = Store::host_at(LOCAL, 0, TIMEOUT).unwrap();
    assert!(Store::host_at(LOCAL, store.port(), TIMEOUT).is_err());
}

#[test]
fn a_store_at_an_address_does_not_answer_on_another_one() {
    let store = Store::host_at(LOCAL, 0, TIMEOUT).unwrap();
    store.set("key", b"value").unwrap();
    let other = connect("127.0.0.1", store.port());
    assert_eq!(other.get("key").unwrap(), b"value");
    let elsewhere = TcpStream::connect(("127.0.0.2", store.port())).unwrap_err();
    assert_eq!(elsewhere.kind(), std::io::ErrorKind::ConnectionRefused);
    // The one on all interfaces does, so the test can tell.
    let open = Store::host(0, TIMEOUT).unwrap();
    assert!(TcpStream::connect(("127.0.0.2", open.port())).is_ok());
}

#[test]
fn a_store_listens_on_an_ipv6_address() {
    let store = Store::host_at(IpAddr::V6(Ipv6Addr::LOCALHOST), 0, TIMEOUT).unwrap();
    store.set("key", b"value").unwrap();
    assert_eq!(connect("::1", store.port()).get("key").unwrap(), b"value");
    assert!(TcpStream::connect(("127.0.0.1", store.port())).is_err());
}

#[test]
fn an_address_of_another_host_is_an_error() {
    let elsewhere = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let error = Store::host_at(elsewhere, 0, TIMEOUT).unwrap_err();
    assert!(error.message.contains("192.0.2.1"), "{error}");
}

#[test]
fn a_deleted_key_is_gone_and_others_stay() {
    let store = Store::host_at(LOCAL, 0, TIMEOUT).unwrap();
    store.set("key", b"value").unwrap();
    store.set("other", b"value").unwrap();
    assert!(store.delete("key").unwrap());
    assert!(!store.delete("key").unwrap());
    assert_eq!(store.get("other").unwrap(), b"value");
    store.set_timeout(Duration::from_millis(50)).unwrap();
    assert_eq!(store.get("key").unwrap_err().kind, ErrorKind::Timeout);
}

#[test]
fn clearing_a_prefix_deletes_its_keys_alone() {
    let store = Store::host_at(LOCAL, 0, TIMEOUT).unwrap();
    let before = store.num_keys().unwrap();
    let generation = store.prefix("gen1").unwrap();
    generation.set("key", b"value").unwrap();
    generation.add("count", 1).unwrap();
    generation
        .prefix("inner")
        .unwrap()
        .set("key", b"value")
        .unwrap();
    let next = store.prefix("gen12").unwrap();
    next.set("key", b"next").unwrap();
    assert_eq!(generation.clear().unwrap(), 3);
    assert_eq!(generation.clear().unwrap(), 0);
    assert_eq!(next.get("key").unwrap(), b"next");
    assert_eq!(store.num_keys().unwrap(), before + 1);
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

type GetNameInfo =
    unsafe extern "C" fn(*const u8, u32, *mut c_char, u32, *mut c_char, u32, c_int) -> c_int;

#[test]
fn no_name_server_is_asked_who_a_peer_is() {
    // 127.0.0.1 as a sockaddr_in, whose name every machine knows.
    let mut address = [0_u8; 16];
    address[..2].copy_from_slice(&2_u16.to_ne_bytes());
    address[4..8].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
    let mut host: [c_char; 100] = [0; 100];
    // SAFETY: no handle is the process, in the order in which libraries look for symbols. It is the C library's function or
    // the one in its place, and buffers have the given lengths.
    let status = unsafe {
        let symbol = dlsym(std::ptr::null_mut(), c"getnameinfo".as_ptr());
        assert!(!symbol.is_null());
        let getnameinfo = std::mem::transmute::<*mut c_void, GetNameInfo>(symbol);
        getnameinfo(
            address.as_ptr(),
            16,
            host.as_mut_ptr(),
            100,
            std::ptr::null_mut(),
            0,
            0,
        )
    };
    assert_eq!(status, 0);
    // SAFETY: the call succeeded, so it has written a string.
    assert_eq!(unsafe { CStr::from_ptr(host.as_ptr()) }, c"127.0.0.1");
}
