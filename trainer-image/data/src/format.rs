//! The data formats. Each format returns records or tokens by number. Only an index is kept in
//! memory, except for IDX files, which are small.

pub mod folder;
pub mod idx;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod shards;
#[cfg(feature = "text")]
pub mod text;
pub mod tfrecord;
pub mod tokens;
pub mod webdataset;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
