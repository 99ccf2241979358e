//! Defaults of a validated job.

use roundhouse_planner::testing::world;

#[test]
fn default_replacement_limit_is_ten_per_pod() {
    let most = |workers| world(workers).job.most_replacements();
    assert_eq!((most(1), most(10), most(64)), (100, 100, 640));
}
