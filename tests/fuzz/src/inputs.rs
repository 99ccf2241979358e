//! Joins several files into one input of a target.

/// Joins files into one input. The length of each file but the last precedes it, as four bytes in
/// little endian.
#[must_use]
pub fn joined(files: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, file) in files.iter().enumerate() {
        if index + 1 < files.len() {
            let length = u32::try_from(file.len()).unwrap_or(u32::MAX);
            bytes.extend(length.to_le_bytes());
        }
        bytes.extend_from_slice(file);
    }
    bytes
}

/// The inverse of [`joined`]. A length beyond the end means all remaining bytes.
#[must_use]
pub fn parts<const N: usize>(mut bytes: &[u8]) -> [&[u8]; N] {
    let mut parts = [&[][..]; N];
    for (index, part) in parts.iter_mut().enumerate() {
        if index + 1 == N {
            *part = bytes;
            break;
        }
        let Some((length, rest)) = bytes.split_first_chunk() else {
            break;
        };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        (*part, bytes) = rest.split_at(length.min(rest.len()));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_files_split_into_the_same_files() {
        let files: [&[u8]; 3] = [b"one", b"", b"three"];
        assert_eq!(parts::<3>(&joined(&files)), files);
        assert_eq!(parts::<2>(&[9, 0, 0, 0, 7]), [&[7][..], &[]]);
        assert_eq!(parts::<2>(&[9]).concat(), b"");
    }
}
