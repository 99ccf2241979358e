//! The rendezvous store: its addresses, its keys, and its lack of name lookups.

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
fn missing_store_is_an_error_within_the_timeout() {
    let port = Store::host_at(LOCAL, 0, TIMEOUT).unwrap().port();
    let error = Store::connect("127.0.0.1", port, Duration::from_secs(1)).unwrap_err();
    assert!(error.is_peer_lost(), "{error:?}");
}

#[test]
fn prefixes_separate_values() {
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
fn port_in_use_is_an_error() {
    let store = Store::host(0, TIMEOUT).unwrap();
    assert!(Store::host(store.port(), TIMEOUT).is_err());
    let store = Store::host_at(LOCAL, 0, TIMEOUT).unwrap();
    assert!(Store::host_at(LOCAL, store.port(), TIMEOUT).is_err());
}

#[test]
fn store_answers_only_on_its_address() {
    let store = Store::host_at(LOCAL, 0, TIMEOUT).unwrap();
    store.set("key", b"value").unwrap();
    let other = connect("127.0.0.1", store.port());
    assert_eq!(other.get("key").unwrap(), b"value");
    let elsewhere = TcpStream::connect(("127.0.0.2", store.port())).unwrap_err();
    assert_eq!(elsewhere.kind(), std::io::ErrorKind::ConnectionRefused);
    // A store on all interfaces does answer, which proves that the test can detect an answer.
    let open = Store::host(0, TIMEOUT).unwrap();
    assert!(TcpStream::connect(("127.0.0.2", open.port())).is_ok());
}

#[test]
fn store_listens_on_an_ipv6_address() {
    let store = Store::host_at(IpAddr::V6(Ipv6Addr::LOCALHOST), 0, TIMEOUT).unwrap();
    store.set("key", b"value").unwrap();
    assert_eq!(connect("::1", store.port()).get("key").unwrap(), b"value");
    assert!(TcpStream::connect(("127.0.0.1", store.port())).is_err());
}

#[test]
fn address_of_another_host_is_an_error() {
    let elsewhere = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let error = Store::host_at(elsewhere, 0, TIMEOUT).unwrap_err();
    assert!(error.message.contains("192.0.2.1"), "{error}");
}

#[test]
fn deleting_a_key_keeps_other_keys() {
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
fn clearing_a_prefix_deletes_only_its_keys() {
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
fn peers_are_not_looked_up_in_dns() {
    // 127.0.0.1 as a sockaddr_in. Every machine knows its name.
    let mut address = [0_u8; 16];
    address[..2].copy_from_slice(&2_u16.to_ne_bytes());
    address[4..8].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
    let mut host: [c_char; 100] = [0; 100];
    // SAFETY: a null handle means the process, in the search order of libraries. The symbol is the
    // C library's function or its replacement, and the buffers have the given lengths.
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
    // SAFETY: the call succeeded, so it wrote a string.
    assert_eq!(unsafe { CStr::from_ptr(host.as_ptr()) }, c"127.0.0.1");
}
