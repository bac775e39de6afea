//! The results of a run, one row per line, so that several programs can append to one file and a report can be made of it.

use apps::error::{AppError, Result};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The outcome of a trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As expected.
    Pass,
    /// Not as expected.
    Fail,
    /// It could not be tried.
    Skip,
    /// No verdict: a version, a count.
    Note,
}

/// One result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, clap::Args)]
pub struct Row {
    /// Table that it belongs to
    #[arg(long)]
    pub part: String,
    /// Network, or what else tells the columns of the table apart
    #[arg(long, default_value = "")]
    pub net: String,
    /// What was tried
    #[arg(long)]
    pub what: String,
    /// Who was the requester, or the client
    #[arg(long, default_value = "")]
    pub by: String,
    /// How it ended
    #[arg(long, value_enum, default_value_t = Verdict::Note)]
    pub verdict: Verdict,
    /// The case in particular; with a failure or skip, why
    #[arg(long, default_value = "")]
    pub detail: String,
    /// The cell, if it is tried several times: the last try counts
    #[arg(long, default_value = "")]
    #[serde(default)]
    pub cell: String,
}

/// A file of results to append to; without a path, results are not stored.
#[derive(Debug)]
pub struct Results(Option<(File, PathBuf)>);

impl Results {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// [`AppError::Setup`].
    pub fn append(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self(None)) };
        let file = OpenOptions::new().append(true).create(true).open(path);
        let file = file.map_err(|e| AppError::Setup(format!("{}: {e}", path.display())))?;
        Ok(Self(Some((file, path.into()))))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`AppError::Setup`].
    pub fn add(&mut self, row: &Row) -> Result<()> {
        let Some((file, path)) = &mut self.0 else { return Ok(()) };
        let line = serde_json::to_string(row).map_err(|e| AppError::Setup(e.to_string()))?;
        writeln!(file, "{line}").map_err(|e| AppError::Setup(format!("{}: {e}", path.display())))
    }
}

/// All rows of a file. If a cell was tried several times, only the last row counts.
///
/// # Errors
/// [`AppError::Setup`] with the invalid line.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    let fail = |e: String| AppError::Setup(format!("{}: {e}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let row = |(n, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|e| fail(format!("line {}: {e}", n + 1)))
    };
    let rows = text.lines().enumerate().map(row).collect::<Result<Vec<Row>>>()?;
    // In the order of the first tries.
    let mut last: Vec<Row> = Vec::with_capacity(rows.len());
    let mut places = HashMap::new();
    for row in rows {
        let key = (row.cell.clone(), row.net.clone(), row.part.clone());
        match places.get(&key) {
            Some(&at) if !row.cell.is_empty() => last[at] = row,
            _ => {
                places.insert(key, last.len());
                last.push(row);
            }
        }
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_try_of_a_cell_counts() {
        let row = |cell: &str, verdict| Row {
            part: "Matrix".into(),
            net: "ipv4".into(),
            what: "rc send".into(),
            by: "us".into(),
            verdict,
            detail: String::new(),
            cell: cell.into(),
        };
        let path = std::env::temp_dir().join(format!("roce-interop-results-{}", std::process::id()));
        let mut results = Results::append(Some(&path)).unwrap();
        let rows = [
            row("1 B", Verdict::Fail),
            row("", Verdict::Note),
            row("2 B", Verdict::Pass),
            row("1 B", Verdict::Pass),
            row("", Verdict::Note),
        ];
        for row in &rows {
            results.add(row).unwrap();
        }
        let read = read(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), [3, 1, 2, 4].map(|n: usize| rows[n].clone()));
    }
}
