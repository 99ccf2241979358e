//! Defaults of a validated job.

use roundhouse_planner::testing::world;

#[test]
fn by_default_each_pod_may_be_replaced_ten_times() {
    let most = |workers| world(workers).job.most_replacements();
    assert_eq!((most(1), most(10), most(64)), (100, 100, 640));
}
