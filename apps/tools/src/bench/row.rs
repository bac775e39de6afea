//! A row as `roce-perf --json` writes it, with fields that the suite adds: the part, the machine's state, and the run.

use apps::report::median;
use serde_json::{Map, Value, json};

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row(pub Map<String, Value>);

impl Row {
    /// The rows of a JSON array.
    ///
    /// # Errors
    /// A sentence when the text is not an array of objects.
    pub fn parse(text: &str) -> Result<Vec<Self>, String> {
        let all: Vec<Map<String, Value>> = serde_json::from_str(text)
            .map_err(|e| format!("roce-perf wrote rows that cannot be read: {e}"))?;
        Ok(all.into_iter().map(Self).collect())
    }

    /// A row of an operation.
    pub fn new(op: &str, mode: &str) -> Self {
        Self::default().with("op", op).with("mode", mode)
    }

    /// A row of an alternative to this stack.
    pub fn peer(name: &str, mode: &str, size: u64) -> Self {
        Self::new("peer", mode).with("peer", name).with("size", size)
    }

    /// A text field; empty if the field is absent or no text.
    pub fn text(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or("")
    }
    /// A numeric field; `None` if the field is absent or no number.
    pub fn num(&self, key: &str) -> Option<f64> {
        self.0.get(key).and_then(Value::as_f64)
    }
    /// The row with a field set.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.set(key, value);
        self
    }
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.into(), value.into());
    }

    /// The latency distribution: quantiles, each with its nanoseconds.
    pub fn quantiles(&self) -> Vec<(f64, f64)> {
        let all = self.0.get("quantiles").and_then(Value::as_array);
        let pair = |v: &Value| Some((v.get(0)?.as_f64()?, v.get(1)?.as_f64()?));
        all.map(|all| all.iter().filter_map(pair).collect()).unwrap_or_default()
    }

    /// Whether the rows are of the same measurement, in whatever run.
    fn same(&self, other: &Self) -> bool {
        const KEYS: [&str; 9] = ["part", "op", "peer", "mode", "size", "mtu", "qps", "pattern", "visit"];
        KEYS.iter().all(|key| self.0.get(*key) == other.0.get(*key))
    }
}

/// Adds figures that combine the rows of one measurement: the time that this stack adds to a bare frame per side (`added_ns`, negative
/// if the machine's state changed in between), and the rate or latency relative to that of the first row (`of_first`). The median of
/// such figures says more than a figure computed from medians, which may come from different states.
pub fn compare(rows: &mut [Row]) {
    let of = |key| Some((key, rows.first()?.num(key)?));
    let first = of("msgs_per_s").or(of("p50_ns"));
    for (n, row) in rows.iter_mut().enumerate() {
        if let Some((p50, limit)) = row.num("p50_ns").zip(row.num("limit")) {
            row.set("added_ns", (p50 - limit) / 2.0);
        }
        if let (1.., Some((key, first))) = (n, first)
            && let Some(own) = row.num(key)
        {
            row.set("of_first", own / first);
        }
    }
}

/// One row for all rows of the same measurement in different runs: each number is the median.
pub fn medians(runs: &[&[Row]]) -> Vec<Row> {
    let mut out: Vec<Row> = Vec::new();
    for row in runs.iter().flat_map(|rows| rows.iter()) {
        if out.iter().any(|have| have.same(row)) {
            continue;
        }
        let all: Vec<&Row> = runs.iter().flat_map(|rows| rows.iter()).filter(|r| r.same(row)).collect();
        let mut merged = row.clone();
        for (key, value) in &mut merged.0 {
            if !value.is_number() {
                continue;
            }
            let Some(mid) = median(all.iter().filter_map(|r| r.num(key)).collect()) else { continue };
            *value = if value.is_u64() { json!(mid.round() as u64) } else { json!(mid) };
        }
        let curves: Vec<_> = all.iter().map(|r| r.quantiles()).filter(|c| !c.is_empty()).collect();
        if let Some(first) = curves.first() {
            let mid = |q: f64| median(curves.iter().flatten().filter(|p| p.0 == q).map(|p| p.1).collect());
            let curve: Vec<Value> =
                first.iter().filter_map(|(q, _)| Some(json!([q, mid(*q)?.round() as u64]))).collect();
            merged.set("quantiles", curve);
        }
        merged.set("median_of", all.len());
        out.push(merged);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(text: &str) -> Row {
        Row::parse(&format!("[{text}]")).unwrap().remove(0)
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![f64::NAN, 7.0]), Some(7.0));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn rows_of_one_measurement_are_compared_with_each_other() {
        // A quick measurement, a slow one, and one in which the state changed: each has a ratio of 80 %.
        let runs: Vec<Vec<Row>> = [(10.0, 8.0), (5.0, 4.0), (10.0, 4.0), (5.0, 4.0), (10.0, 8.0)]
            .iter()
            .map(|(few, many)| {
                let lat = r#"{"part":"lat","op":"send","p50_ns":500,"limit":600.0}"#;
                let rate = |part, rate| format!(r#"{{"part":"{part}","op":"send","msgs_per_s":{rate:.1}}}"#);
                let mut rows = vec![row(&rate("few", few)), row(&rate("many", many)), row(lat)];
                compare(&mut rows);
                rows
            })
            .collect();
        let all: Vec<&[Row]> = runs.iter().map(Vec::as_slice).collect();
        let merged = medians(&all);
        assert_eq!((merged[1].num("msgs_per_s"), merged[1].num("of_first")), (Some(4.0), Some(0.8)));
        assert_eq!((merged[0].num("of_first"), merged[2].num("of_first")), (None, None));
        assert_eq!((merged[0].num("added_ns"), merged[2].num("added_ns")), (None, Some(-50.0)));
    }

    #[test]
    fn rows_of_runs_become_one_with_medians() {
        let runs: Vec<Vec<Row>> = [100, 900, 300]
            .iter()
            .map(|ns| {
                let lat = format!(
                    r#"{{"part":"lat","op":"send","size":64,"p50_ns":{ns},"quantiles":[[0.5,{ns}]]}}"#
                );
                vec![row(&lat), row(r#"{"part":"one","op":"send","size":64,"msgs_per_s":1.5,"port":"x"}"#)]
            })
            .collect();
        let all: Vec<&[Row]> = runs.iter().map(Vec::as_slice).collect();
        let merged = medians(&all);
        assert_eq!(merged.len(), 2);
        assert_eq!((merged[0].num("p50_ns"), merged[0].quantiles()), (Some(300.0), vec![(0.5, 300.0)]));
        assert_eq!(merged[0].num("median_of"), Some(3.0));
        assert_eq!((merged[1].num("msgs_per_s"), merged[1].text("port")), (Some(1.5), "x"));
    }
}
