//! The shape of `--json`: scripts rely on it.

use apps::json::{JsonFile, Row, render};
use serde_json::Value;

#[test]
fn a_row_has_every_field_and_null_where_it_does_not_apply() {
    let row = Row { op: "write", mode: "bw", size: 4096, port: "loopback".into(), ..Row::default() };
    let rows: Value = serde_json::from_str(&render(&[row])).unwrap();
    let row = rows[0].as_object().unwrap();
    for name in [
        "op",
        "mode",
        "size",
        "mtu",
        "qps",
        "port",
        "msgs_per_s",
        "gbit_per_s",
        "min_ns",
        "p50_ns",
        "p99_ns",
        "p999_ns",
        "max_ns",
        "retries",
        "naks",
        "drops",
        "limit",
        "ratio",
    ] {
        assert!(row.contains_key(name), "{name}");
    }
    assert_eq!(row["op"], "write");
    assert_eq!(row["size"], 4096);
    assert!(row["p50_ns"].is_null() && row["limit"].is_null() && row["mtu"].is_null());
}

#[test]
fn files_hold_one_array_with_a_row_a_line() {
    let path = std::env::temp_dir().join(format!("roce-json-{}.json", std::process::id()));
    let file = JsonFile::create(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "[]\n");
    file.write(&[Row::default(), Row::default()]).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert_eq!(serde_json::from_str::<Vec<Value>>(&text).unwrap().len(), 2);
}

#[test]
fn a_file_that_cannot_be_written_is_said_so() {
    let error = JsonFile::create("/nonexistent/rows.json".as_ref()).unwrap_err().to_string();
    assert!(error.contains("--json /nonexistent/rows.json: the file cannot be written"), "{error}");
}
