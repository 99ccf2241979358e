//! Reads the histogram of reconcile durations from the operator's metrics.

use std::time::Duration;

use kube::{Client, Config};

const NAME: &str = "roundhouse_operator_reconcile_seconds_bucket";

/// The cumulative buckets so far: upper bound in seconds, and number of reconciles with any result.
pub(super) struct Reconciles(Vec<(f64, u64)>);

impl Reconciles {
    pub(super) async fn read(port: u16) -> anyhow::Result<Self> {
        let operator = Config::new(format!("http://127.0.0.1:{port}").parse()?);
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let page = Client::try_from(operator)?.request_text(request).await?;
        Ok(Self::parse(&page))
    }

    fn parse(page: &str) -> Self {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for line in page.lines().filter(|line| line.starts_with(NAME)) {
            let bound = line
                .split("le=\"")
                .nth(1)
                .and_then(|rest| rest.split('"').next());
            let bound = match bound {
                Some("+Inf") => f64::INFINITY,
                bound => bound.and_then(|text| text.parse().ok()).unwrap_or_default(),
            };
            let count = line.rsplit(' ').next().and_then(|text| text.parse().ok());
            let count: u64 = count.unwrap_or_default();
            match buckets
                .iter_mut()
                .find(|(it, _)| it.total_cmp(&bound).is_eq())
            {
                Some((_, sum)) => *sum += count,
                None => buckets.push((bound, count)),
            }
        }
        Self(buckets)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|(_, count)| *count).max().unwrap_or(0)
    }

    /// The upper bound of the bucket with this quantile of the reconciles since `before`.
    pub(super) fn quantile_since(&self, before: &Self, quantile: f64) -> Duration {
        let all = (self.count() - before.count()) as f64;
        let since = |(index, (bound, count)): (usize, &(f64, u64))| {
            let earlier = before.0.get(index).map_or(0, |(_, count)| *count);
            (*bound, count - earlier)
        };
        let mut buckets = self.0.iter().enumerate().map(since);
        let bound = buckets.find(|(_, count)| *count as f64 >= quantile * all);
        Duration::try_from_secs_f64(bound.map_or(0.0, |(bound, _)| bound)).unwrap_or(Duration::MAX)
    }
}
