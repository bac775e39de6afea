//! Tables of results, in Markdown.

use super::results::{Row, Verdict};
use std::fmt::Write;

/// The line that begins the tables of one kernel on a page.
fn begin(section: &str) -> String {
    format!("<!-- results of {section} -->")
}
const END: &str = "<!-- end of results -->";

/// Distinct keys, in the order of their first occurrence.
fn distinct<'a>(rows: &[&'a Row], key: impl Fn(&'a Row) -> String) -> Vec<String> {
    let mut keys = Vec::new();
    for row in rows {
        let key = key(row);
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

fn column(row: &Row) -> String {
    [row.net.as_str(), row.by.as_str()].into_iter().filter(|s| !s.is_empty()).collect::<Vec<_>>().join(", ")
}

/// A summary of how many of these passed.
fn summary(rows: &[&Row]) -> String {
    let count = |verdict: Verdict| rows.iter().filter(|r| r.verdict == verdict).count();
    let (passed, failed, skipped) = (count(Verdict::Pass), count(Verdict::Fail), count(Verdict::Skip));
    let notes: Vec<_> = rows.iter().filter(|r| r.verdict == Verdict::Note).map(|r| &*r.detail).collect();
    let mut parts = Vec::new();
    if passed > 0 {
        parts.push(format!("{passed} pass"));
    }
    if failed > 0 {
        parts.push(format!("**{failed} fail**"));
    }
    if skipped > 0 {
        parts.push(format!("{skipped} skipped"));
    }
    parts.extend(notes.into_iter().map(str::to_string));
    parts.join(", ")
}

/// A table for each part: a line for each cell or case, a column for each network and requester.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::new();
    let all: Vec<_> = rows.iter().collect();
    for part in distinct(&all, |r| r.part.clone()) {
        let rows: Vec<_> = all.iter().copied().filter(|r| r.part == part).collect();
        let columns = distinct(&rows, column);
        let _ = writeln!(text, "\n#### {part}\n\n| | {} |", columns.join(" | "));
        let _ = writeln!(text, "| --- |{}", " --- |".repeat(columns.len()));
        for what in distinct(&rows, |r| r.what.clone()) {
            let _ = write!(text, "| {what} |");
            for name in &columns {
                let cell: Vec<_> =
                    rows.iter().copied().filter(|r| r.what == what && column(r) == *name).collect();
                let _ = write!(text, " {} |", summary(&cell));
            }
            text.push('\n');
        }
        let mut said: Vec<(String, usize)> = Vec::new();
        for row in rows.iter().filter(|r| matches!(r.verdict, Verdict::Fail | Verdict::Skip)) {
            let verdict = if row.verdict == Verdict::Fail { "Failed" } else { "Skipped" };
            let line = format!("{verdict}: {}, {}: {}", column(row), row.what, row.detail);
            match said.iter_mut().find(|(l, _)| *l == line) {
                Some((_, n)) => *n += 1,
                None => said.push((line, 1)),
            }
        }
        for (line, n) in said {
            let times = if n > 1 { format!(" ({n} cells)") } else { String::new() };
            let _ = write!(text, "\n{line}{times}\n");
        }
    }
    let count = |v: Verdict| rows.iter().filter(|r| r.verdict == v).count();
    let (passed, failed) = (count(Verdict::Pass), count(Verdict::Fail));
    let _ = writeln!(text, "\n{passed} passed, {failed} failed, {} skipped.", count(Verdict::Skip));
    text
}

/// A page with the tables of a section replaced; `None` if the page has no place for them.
pub fn into_page(page: &str, section: &str, tables: &str) -> Option<String> {
    let begin = begin(section);
    let (head, rest) = page.split_once(&begin)?;
    let (_, tail) = rest.split_once(END)?;
    Some(format!("{head}{begin}\n{tables}\n{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &str, net: &str, by: &str, verdict: Verdict, detail: &str) -> Row {
        let text = |s: &str| s.to_string();
        Row {
            part: text("Matrix"),
            net: text(net),
            what: text(what),
            by: text(by),
            verdict,
            detail: text(detail),
            cell: String::new(),
        }
    }

    #[test]
    fn a_line_for_each_thing_and_a_column_for_each_way() {
        let rows = [
            row("rc send", "ipv4", "us", Verdict::Pass, "1 B"),
            row("rc send", "ipv4", "us", Verdict::Pass, "0 B"),
            row("rc send", "ipv4", "linux", Verdict::Fail, "nothing came"),
            row("rc atomic_write", "ipv4", "us", Verdict::Skip, "not in 6.1"),
            row("rc atomic_write", "ipv4", "us", Verdict::Skip, "not in 6.1"),
            row("kernel", "", "", Verdict::Note, "6.1"),
        ];
        let text = markdown(&rows);
        for line in [
            "| | ipv4, us | ipv4, linux |  |",
            "| rc send | 2 pass | **1 fail** |  |",
            "| rc atomic_write | 2 skipped |  |  |",
            "| kernel |  |  | 6.1 |",
            "Failed: ipv4, linux, rc send: nothing came",
            "Skipped: ipv4, us, rc atomic_write: not in 6.1 (2 cells)",
            "2 passed, 1 failed, 2 skipped.",
        ] {
            assert!(text.lines().any(|l| l == line), "{line:?} is not in\n{text}");
        }
    }

    #[test]
    fn a_page_keeps_what_is_around_the_tables() {
        let place = |name: &str, text: &str| format!("{}\n{text}\n{END}\n", begin(name));
        let page = format!("# A\n{}b\n{}c\n", place("6.1", "old"), place("7", "old"));
        let new = into_page(&page, "7", "new").unwrap();
        assert_eq!(new, format!("# A\n{}b\n{}c\n", place("6.1", "old"), place("7", "new")));
        assert_eq!(into_page(&new, "7", "new"), Some(new.clone()));
        let both = into_page(&new, "6.1", "new").unwrap();
        assert_eq!(both, format!("# A\n{}b\n{}c\n", place("6.1", "new"), place("7", "new")));
        assert_eq!(into_page(&page, "6.12", "new"), None);
    }
}
