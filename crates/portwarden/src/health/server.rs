//! `/healthz` and `/livez`.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use portwarden_model::{HealthReport, Timestamp};

use super::state::SharedHealth;
use crate::engine::Moment;
use crate::http::{Answer, Handler, json, not_found};
use crate::metrics::HealthMetrics;

/// The zero time of Go.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// The handler of the health port.
pub fn handler(health: SharedHealth, metrics: HealthMetrics) -> Handler {
    Arc::new(move |request| {
        let answer = answer(request.uri().path(), &health, &metrics, Moment::now());
        Box::pin(async { answer })
    })
}

fn answer(path: &str, health: &SharedHealth, metrics: &HealthMetrics, now: Moment) -> Answer {
    let (report, eligible) = health.report(now.instant);
    let (well, eligible, counter) = match path {
        "/healthz" => (report.takes_traffic(eligible), Some(eligible), &metrics.healthz),
        "/livez" => (report.healthy, None, &metrics.livez),
        _ => return not_found(),
    };
    let status = if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    counter.with_label_values(&[status.as_str()]).inc();
    json(status, body(&report, well, eligible, now, |at| health.date(at, now)))
}

/// Compact, in a fixed order of keys.
fn body(
    report: &HealthReport,
    well: bool,
    eligible: Option<bool>,
    now: Moment,
    date: impl Fn(Instant) -> Timestamp,
) -> String {
    let newest = if well { Some(now.wall) } else { report.last_updated.map(&date) };
    let newest = newest.map_or_else(|| NEVER.to_owned(), |at| at.to_string());
    let mut out = format!("{{\"lastUpdated\":\"{newest}\",\"currentTime\":\"{}\"", now.wall);
    // Writing to a string cannot fail.
    if let Some(eligible) = eligible {
        let _ = write!(out, ",\"nodeEligible\":{eligible}");
    }
    let _ = write!(out, ",\"healthy\":{}", report.healthy);
    let known = report.families.iter().filter_map(|(family, health)| Some((family, health.as_ref()?)));
    let families: Vec<String> = known
        .map(|(family, health)| {
            let updated = date(health.last_updated);
            format!("\"{family}\":{{\"lastUpdated\":\"{updated}\",\"healthy\":{}}}", health.healthy)
        })
        .collect();
    if !families.is_empty() {
        let _ = write!(out, ",\"status\":{{{}}}", families.join(","));
    }
    out.push('}');
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt;
    use portwarden_model::Family;

    use super::*;
    use crate::metrics::{BuildInfo, Metrics};

    /// Seconds after the epoch, on both clocks.
    struct Time(Instant);

    impl Time {
        fn at(&self, seconds: u32) -> Moment {
            let instant = self.0 + Duration::from_secs(seconds.into());
            Moment { instant, wall: Timestamp::from_nanos(i64::from(seconds) * 1_000_000_000) }
        }
    }

    async fn ask(path: &str, health: &SharedHealth, metrics: &Metrics, now: Moment) -> (u16, String) {
        let answer = answer(path, health, &metrics.health, now);
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("a whole body").to_bytes();
        (status, String::from_utf8(body.to_vec()).expect("text"))
    }

    #[tokio::test]
    async fn answers_follow_the_rules_of_the_reference() {
        let metrics = Metrics::new(&BuildInfo::default()).expect("metrics");
        let time = Time(Instant::now());
        let at = |seconds| time.at(seconds);
        let health = SharedHealth::new(Duration::from_secs(30));
        let unknown_node = ask("/healthz", &health, &metrics, at(1)).await;
        let wanted = "{\"lastUpdated\":\"0001-01-01T00:00:00Z\",\"currentTime\":\"1970-01-01T00:00:01Z\",\"nodeEligible\":false,\"healthy\":true}";
        assert_eq!(unknown_node, (503, wanted.to_owned()));
        health.set_node_eligible(true);
        health.updated(Family::V4, at(2).instant);
        health.queued(Family::V4, at(3).instant);
        let fresh = ask("/healthz", &health, &metrics, at(62)).await;
        let wanted = "{\"lastUpdated\":\"1970-01-01T00:01:02Z\",\"currentTime\":\"1970-01-01T00:01:02Z\",\"nodeEligible\":true,\"healthy\":true,\
                      \"status\":{\"IPv4\":{\"lastUpdated\":\"1970-01-01T00:00:02Z\",\"healthy\":true}}}";
        assert_eq!(fresh, (200, wanted.to_owned()));
        let skewed = Moment { wall: Timestamp::from_nanos(62_000_000_064), ..at(62) };
        let (_, again) = ask("/livez", &health, &metrics, skewed).await;
        assert!(
            again.contains("\"IPv4\":{\"lastUpdated\":\"1970-01-01T00:00:02Z\""),
            "a date stays: {again}"
        );
        let late = ask("/livez", &health, &metrics, at(63)).await;
        let wanted = "{\"lastUpdated\":\"1970-01-01T00:00:02Z\",\"currentTime\":\"1970-01-01T00:01:03Z\",\"healthy\":false,\
                      \"status\":{\"IPv4\":{\"lastUpdated\":\"1970-01-01T00:00:02Z\",\"healthy\":false}}}";
        assert_eq!(late, (503, wanted.to_owned()));
        health.updated(Family::V4, at(64).instant);
        health.set_node_eligible(false);
        assert_eq!(ask("/healthz", &health, &metrics, at(65)).await.0, 503, "the node is going away");
        assert_eq!(ask("/livez", &health, &metrics, at(65)).await.0, 200, "which is no reason to restart");
        assert_eq!(
            ask("/healthz/", &health, &metrics, at(65)).await,
            (404, "404 page not found\n".to_owned())
        );
        let text = metrics.text();
        assert!(text.contains("kubeproxy_proxy_healthz_total{code=\"200\"} 1\n"), "{text}");
        assert!(text.contains("kubeproxy_proxy_healthz_total{code=\"503\"} 2\n"));
        assert!(text.contains("kubeproxy_proxy_livez_total{code=\"503\"} 1\n"));
    }
}
