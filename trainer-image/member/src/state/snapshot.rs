//! A part of a state at one step, in host memory, while the state keeps changing.

use std::any::Any;
use std::fmt::Debug;

use crate::failure::Failure;

/// A copy that may still be in progress. The writing thread waits for it, and training does not.
pub trait Snapshot: Any + Debug + Send {
    /// Waits until the copy is complete.
    ///
    /// # Errors
    /// [`Failure::State`] if the device has failed.
    fn bytes(&mut self) -> Result<&[u8], Failure>;
}

/// A copy that was complete from the start.
impl Snapshot for Vec<u8> {
    fn bytes(&mut self) -> Result<&[u8], Failure> {
        Ok(self)
    }
}

/// The memory of a former snapshot, if it is of this type.
#[must_use]
pub fn reused<S: Snapshot>(former: Option<Box<dyn Snapshot>>) -> Option<S> {
    let former: Box<dyn Any> = former?;
    former.downcast().ok().map(|former| *former)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::super::tests::{Bytes, NUM_BYTES};
    use super::*;

    #[test]
    fn snapshot_keeps_bytes_and_its_memory_is_reused() {
        let mut state = Bytes::filled(1);
        let mut first = state.snapshot(0..NUM_BYTES, None).unwrap();
        state.copy_in(0, &[2; 10]).unwrap();
        assert_eq!(first.bytes().unwrap(), Bytes::filled(1).0);

        let place = first.bytes().unwrap().as_ptr();
        let mut second = state.snapshot(5..15, Some(first)).unwrap();
        assert_eq!(second.bytes().unwrap(), [2, 2, 2, 2, 2, 1, 1, 1, 1, 1]);
        assert_eq!(second.bytes().unwrap().as_ptr(), place);
    }

    #[derive(Debug)]
    struct Other;

    impl Snapshot for Other {
        fn bytes(&mut self) -> Result<&[u8], Failure> {
            Err(Failure::Internal("never".to_owned()))
        }
    }

    #[test]
    fn memory_of_another_type_is_not_reused() {
        assert!(reused::<Vec<u8>>(None).is_none());
        assert!(reused::<Vec<u8>>(Some(Box::new(Other))).is_none());
        assert_eq!(reused::<Vec<u8>>(Some(Box::new(vec![7_u8]))), Some(vec![7]));
    }
}
