//! The formats. Each gives records or tokens by number; none keeps more of the data in memory than an index,
//! except IDX files, which are small.

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
