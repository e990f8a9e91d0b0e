//! The README says of the workloads what they say of themselves.

use std::collections::{BTreeMap, BTreeSet};

use super::{ExpectedVerdict, all};
use crate::nemesis;

const README: &str = include_str!("../../README.md");

/// The words in backticks.
fn named(text: &str) -> BTreeSet<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The rows of "Which promise, which trial": the promise, and what stands in each column.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let section = README.split_once("## Which promise, which trial").unwrap().1.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| P"));
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0], cells)
    };
    rows.map(row).collect()
}

#[test]
fn the_table_of_promises_is_what_workloads_say() {
    let workloads = all();
    // The control is there to fail.
    let promising = || workloads.iter().filter(|workload| workload.expected() == ExpectedVerdict::Valid);
    let mut said: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (promise, cells) in rows() {
        let column = cells[2].split(';').next().unwrap();
        let listed = match column.starts_with("every workload") {
            true => promising().map(|workload| workload.name()).collect(),
            false => named(column),
        };
        said.entry(promise).or_default().extend(listed);
    }
    assert!(said.len() >= 12, "{said:?}");
    for (promise, listed) in said {
        let claim = promising().filter(|workload| workload.facts().promises.split(' ').any(|one| one == promise));
        let claim: BTreeSet<&str> = claim.map(|workload| workload.name()).collect();
        assert_eq!(listed, claim, "{promise}: on the left the README, on the right what workloads say of themselves");
    }
}

#[test]
fn the_table_names_nemeses_that_there_are() {
    let nemeses = nemesis::all();
    let there: BTreeSet<&str> = nemeses.iter().map(|nemesis| nemesis.name()).collect();
    for (promise, cells) in rows() {
        assert!(named(cells[3]).is_subset(&there), "{promise}: {}", cells[3]);
    }
}

#[test]
fn every_workload_is_said_to_be_judged() {
    let section = README.split_once("### How histories are judged").unwrap().1.split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let judged: BTreeSet<&str> = rows.flat_map(|line| named(line.split('|').nth(1).unwrap())).collect();
    let workloads = all();
    assert_eq!(judged, workloads.iter().map(|workload| workload.name()).collect());
}
