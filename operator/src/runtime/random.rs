//! Random text that cannot be guessed.

use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

/// 128 random bits of the kernel, in hexadecimal.
///
/// # Errors
/// The kernel returns no random bytes.
pub fn nonce() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    let num_given = getrandom(&mut bytes, GetRandomFlags::empty())?;
    // For this few bytes the kernel returns all of them or none.
    if num_given < bytes.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes.map(|byte| format!("{byte:02x}")).concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_are_unique_128_bit_hex() {
        let (one, other) = (nonce().unwrap(), nonce().unwrap());
        assert_ne!(one, other);
        assert_eq!(one.len(), 32);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
