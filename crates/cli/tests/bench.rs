//! `extant bench` from end to end on small volumes: all figures are present. Their values are not evaluated.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::{Image, Spec, Tree, need, tools};

fn extant(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_extant")).args(args).output().expect("extant runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn volume() -> Image {
    Image::mke2fs(&["-t", "ext4", "-b", "1024"], 16 << 20).with_tree(&Tree::new(5, &Spec::small())).build()
}

#[test]
fn a_check_is_measured_beside_e2fsck() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let image = volume();
    for cold in [&[][..], &["--cold"]] {
        let args = ["bench", "check", "--volume", text(image.path()), "-n", "2", "--threads", "2", "--json"];
        let bench = json(&extant(&[&args, cold].concat()));
        assert!(bench["environment"]["versions"]["e2fsck"].as_str().is_some_and(|v| v.contains("e2fsck")), "{bench}");
        let on = &bench["volumes"][0];
        assert_eq!((&on["format"], &on["clean"], &on["bytes"]), (&"ext4".into(), &true.into(), &(16 << 20).into()));
        assert_eq!(on["cold"], Value::from(!cold.is_empty()));
        assert!(on["used_inodes"].as_u64().is_some_and(|n| n > 10), "{on}");
        let peers = on["peers"].as_array().expect("peers");
        assert_eq!(
            peers.iter().map(|p| p["peer"].as_str().unwrap()).collect::<Vec<_>>(),
            ["extant", "e2fsck", "lower-bound"]
        );
        for peer in peers {
            for figure in ["wall_seconds", "cpu_seconds", "wall_to_e2fsck"] {
                let samples = peer[figure]["samples"].as_array().expect(figure);
                assert!(samples.len() == 2 && samples.iter().all(Value::is_f64), "{peer}");
                let [min, median, max] = ["min", "median", "max"].map(|part| peer[figure][part].as_f64().expect(part));
                assert!(0.0 <= min && min <= median && median <= max, "{peer}");
            }
            assert_eq!(peer["peak_rss_bytes"].is_u64(), peer["peer"] != "lower-bound", "{peer}");
        }
        let reads = on["reads"].as_array().expect("reads");
        assert_eq!((&reads[0]["peer"], &reads[0]["witness"]), (&"extant".into(), &"trace".into()));
        for figures in reads {
            assert!(figures["reads"].as_u64().is_some_and(|n| n > 3), "{figures}");
            assert!(figures["non_contiguous"].as_u64() >= figures["backward"].as_u64(), "{figures}");
        }
        // the check reads at least what it needs
        assert!(reads[0]["bytes"].as_u64() >= on["lower_bound_bytes"].as_u64(), "{on}");
        assert!(on["lower_bound_pieces"].as_u64().is_some_and(|n| n > 1), "{on}");
    }
    let table = extant(&["bench", "check", "--volume", text(image.path()), "-n", "1"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    for row in ["| extant ", "| e2fsck ", "| lower-bound ", "The lower bound reads ", "its device"] {
        assert!(table.contains(row), "{row}: {table}");
    }
}

#[test]
fn virtual_seconds_are_the_same_in_each_run() {
    if !need(&["mke2fs", "e2fsck", "strace"]) {
        return;
    }
    let image = volume();
    for model in ["hdd", "ssd"] {
        let args = ["bench", "check", "--volume", text(image.path()), "-n", "1", "--model", model];
        let run = |threads| json(&extant(&[&args[..], &["--threads", threads, "--json"]].concat()));
        // more threads do not change the order of the timed reads
        let [once, twice] = ["1", "4"].map(run);
        let on = &once["volumes"][0];
        let modelled = &on["modelled"];
        // e2fsck's reads may differ: their order is not deterministic
        let ours = |run: &Value| -> Vec<Value> {
            let peers = run["volumes"][0]["modelled"]["peers"].as_array().expect("peers").iter().take(2);
            peers
                .flat_map(|peer| ["virtual_seconds", "seeks", "reads", "bytes"].map(|what| peer[what].clone()))
                .collect()
        };
        assert_eq!(ours(&once), ours(&twice));
        assert_eq!(modelled["model"], model);
        let peers = modelled["peers"].as_array().expect("peers");
        let witnesses = on["reads"].as_array().expect("reads");
        let Some(strace) = witnesses.iter().find(|r| r["peer"] == "e2fsck") else {
            tools::skip("this process must not trace others");
            return;
        };
        let [alone, batches, e2fsck] = &peers[..] else { panic!("{modelled}") };
        assert_eq!([alone, batches, e2fsck].map(|p| &p["peer"]), ["extant", "extant, batches", "e2fsck"]);
        let seconds = |peer: &Value| peer["virtual_seconds"].as_f64().expect("seconds");
        assert!(seconds(batches) > 0.0 && seconds(batches) <= seconds(alone), "{modelled}");
        // the JSON parser may round the last digit
        let ratio = alone["to_e2fsck"].as_f64().expect("a ratio");
        assert!((ratio - seconds(alone) / seconds(e2fsck)).abs() < 1e-9, "{modelled}");
        assert_eq!(e2fsck["to_e2fsck"], 1.0);
        // the timed reads are those that were counted
        assert_eq!((&alone["reads"], &alone["bytes"]), (&batches["reads"], &batches["bytes"]));
        assert_eq!(e2fsck["bytes"], strace["bytes"]);
        for peer in peers {
            assert_eq!(peer["seeks"].as_u64().expect("seeks") > 0, model == "hdd", "{peer}");
        }
        let table = extant(&args);
        let table = String::from_utf8_lossy(&table.stdout).into_owned();
        let row = format!("{:.6}", seconds(alone));
        assert!(table.contains(&format!("modelled disk {model}")) && table.contains(&row), "{row}: {table}");
    }
    let none = json(&extant(&["bench", "check", "--volume", text(image.path()), "-n", "1", "--json"]));
    assert!(none["volumes"][0].get("modelled").is_none(), "{none}");
}

#[test]
fn what_cannot_be_measured_is_said() {
    let image = Image::from_bytes(&[7; 4096]);
    for (args, said) in [
        (&["bench", "check"][..], "specify a volume with --volume"),
        (&["bench", "check", "--volume", "/nowhere/at/all"], "/nowhere/at/all"),
        (&["bench", "check", "--volume", text(image.path()), "--model", "/no/model"], "/no/model"),
        (
            &["bench", "check", "--volume", text(image.path()), "--e2fsck", "/bin/true"],
            "not an ext2/3/4 or Extant volume",
        ),
    ] {
        let output = extant(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(if args.len() == 2 { 2 } else { 1 }), "{args:?}: {error}");
        assert!(
            error.starts_with("extant: ") && error.contains(said) && error.lines().count() == 1,
            "{args:?}: {error}"
        );
    }
    assert_eq!(extant(&["bench", "check", "--make", "many-ext4"]).status.code(), Some(2));
    assert_eq!(extant(&["bench", "check", "--volume", "x", "-n", "0"]).status.code(), Some(2));
}

#[test]
fn reading_is_measured_beside_the_kernel() {
    if !need(&["mke2fs"]) {
        return;
    }
    let image = volume();
    let args = ["bench", "read", "--volume", text(image.path()), "-n", "1", "--json"];
    if !tools::is_root() {
        let output = extant(&args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains("needs root"), "{error}");
        return;
    }
    if !tools::has_fuse() || !tools::has_loop() {
        tools::skip("mounting needs /dev/fuse and loop devices");
        return;
    }
    let bench = json(&extant(&args));
    let workloads = bench["workloads"].as_array().expect("workloads");
    // no file of the tree is large enough for the sequential read
    let names: Vec<_> = workloads.iter().map(|w| w["what"].as_str().unwrap()).collect();
    assert_eq!(names, ["walk with stat, cold", "walk with stat, warm"]);
    for workload in workloads {
        assert!(workload["amount"].as_u64().is_some_and(|n| n > 10), "{workload}");
        let peers = workload["peers"].as_array().expect("peers");
        assert_eq!(
            peers.iter().map(|p| p["peer"].as_str().unwrap()).collect::<Vec<_>>(),
            ["extant", "kernel", "upper-bound"]
        );
        for peer in peers {
            for figure in [&peer["wall_seconds"], &peer["speed_to"]["kernel"], &peer["speed_to"]["upper-bound"]] {
                assert!(figure["median"].as_f64().is_some_and(|median| median > 0.0), "{peer}");
            }
            assert!(peer["per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{peer}");
            assert!(peer["cpu_us_per_operation"]["median"].as_f64().is_some_and(|cpu| cpu > 0.0), "{peer}");
            assert_eq!(peer["transport"].is_string(), peer["peer"] != "kernel", "{peer}");
        }
    }
    let chosen = ["bench", "read", "--volume", text(image.path()), "-n", "1", "--json", "--transport", "dev-fuse"];
    let bench = json(&extant(&[&chosen[..], &["--cpus", "1"]].concat()));
    for workload in bench["workloads"].as_array().expect("workloads") {
        let peers = workload["peers"].as_array().expect("peers");
        let transports: Vec<_> = peers.iter().map(|peer| (peer["peer"].as_str(), peer["transport"].as_str())).collect();
        let [extant, upper_bound] =
            ["extant@dev-fuse", "upper-bound@dev-fuse"].map(|peer| (Some(peer), Some("/dev/fuse")));
        assert_eq!(transports, [extant, (Some("kernel"), None), upper_bound]);
        assert!(peers.iter().all(|peer| peer["processors"] == 1), "{workload}");
        assert!(peers[0]["speed_to"]["upper-bound@dev-fuse"].is_object(), "{workload}");
    }
}

/// Transports that the kernel does not offer and processors that do not exist are refused before a volume is made.
#[test]
fn transports_and_processors_are_checked_before_a_volume_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let write =
        ["bench", "write", "--set", "empty", "--scale", "0.002", "-n", "1", "--dir", text(folder.path()), "--on"];
    let refused = |args: &[&str], status: i32, said: &str| {
        let output = extant(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(status) && error.contains(said), "{args:?}: {error}");
        assert!(status == 2 || error.lines().count() == 1, "{args:?}: {error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{args:?}");
    };
    let peer = "library:ext2:none";
    refused(&[&write[..], &["extant:ext4@pigeon"]].concat(), 2, "a transport is dev-fuse or io_uring");
    refused(&[&write[..], &["kernel:ext4@io_uring"]].concat(), 2, "only extant and upper-bound");
    refused(&["bench", "read", "--transport", "pigeon"], 2, "a transport is dev-fuse or io_uring");
    refused(&[&write[..], &[peer, "--processors", "0"]].concat(), 2, "must be at least 1");
    refused(&[&write[..], &[peer, "--cpus", "many"]].concat(), 2, "must be at least 1");
    refused(
        &[&write[..], &[peer, "--processors", "100000"]].concat(),
        1,
        "100000 processors: the number must be from 1",
    );
    refused(&["bench", "read", "--cpus", "100000"], 1, "100000 processors: the number must be from 1");
    let said = match std::fs::read("/sys/module/fuse/parameters/enable_uring") {
        Ok(state) if state.starts_with(b"Y") => {
            tools::skip("FUSE over io_uring is enabled");
            return;
        }
        Ok(_) => "FUSE over io_uring is disabled in the kernel; as root `echo Y > ",
        Err(_) => "FUSE over io_uring is not supported by the kernel",
    };
    // also where another peer is first
    for other in ["extant:ext4:journal@io_uring", "upper-bound:ext4@io_uring"] {
        refused(&[&write[..], &[peer, "--on", other]].concat(), 1, &format!("{other}: {said}"));
    }
    refused(&["bench", "read", "--transport", "io_uring"], 1, said);
}

#[test]
fn writing_is_measured_beside_other_peers() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let peers = ["library:ext2:none", "library:ext2:dirty-bit"];
    let args = ["bench", "write", "--on", peers[0], "--on", peers[1], "--set", "empty", "--scale", "0.002", "-n", "1"];
    let bench = json(&extant(&[&args[..], &["--to", peers[1], "--json"]].concat()));
    let phases = bench["phases"].as_array().expect("phases");
    let names: Vec<_> = phases.iter().map(|phase| phase["what"].as_str().unwrap()).collect();
    let expected = ["create", "stat", "stat with time of creation", "unlink"];
    assert_eq!(names, expected.map(|phase| format!("empty files: {phase}")));
    for phase in phases {
        assert_eq!(phase["amount"], 200, "{phase}");
        for (peer, name) in phase["peers"].as_array().expect("peers").iter().zip(peers) {
            assert_eq!((&peer["peer"], &peer["transport"]), (&name.into(), &Value::Null));
            let cpu = [&peer["cpu_seconds"], &peer["cpu_us_per_operation"]].map(|spread| spread["median"].as_f64());
            let [Some(seconds), Some(each)] = cpu else { panic!("{peer}") };
            // the JSON parser may round the last digit
            assert!(seconds > 0.0 && (each - seconds * 1e6 / 200.0).abs() < each * 1e-9, "{peer}");
            assert!(peer["speed_to"][peers[1]]["median"].as_f64().is_some_and(|ratio| ratio > 0.0), "{peer}");
        }
    }
    assert!(bench["environment"]["fuse_io_uring"].is_string(), "{bench}");
    let one = extant(&[&args[..], &["--processors", "1"]].concat());
    let table = String::from_utf8_lossy(&one.stdout).into_owned();
    let row = table.lines().find(|line| line.starts_with(&format!("| {} ", peers[0]))).expect("a row");
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    assert_eq!(cells[2..4], ["–", "1"], "{row}");
    for part in ["| transport |", "CPU µs / operation", "FUSE over io_uring"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    let output = extant(&[&args[..], &["--to", "kernel:ext4"]].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && error.contains("kernel:ext4: ratios require"), "{error}");
}

/// Figures on the modelled disk depend on the seed alone.
#[test]
fn linked_writes_are_measured_the_same_in_each_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = |seed| {
        json(&extant(&["bench", "linked", "--dir", text(dir.path()), "--scale", "0.002", "--seed", seed, "--json"]))
    };
    let [once, again, other] = ["3", "3", "4"].map(run);
    assert!(once == again && once["work"] != other["work"], "{once}\n{again}\n{other}");
    let work = once["work"].as_array().expect("work");
    let modes: Vec<_> = work.iter().take(5).map(|row| row["mode"].as_str().expect("a mode")).collect();
    assert_eq!(modes, ["none", "dirty-bit", "linked", "journal", "journal-writeback"]);
    for row in work {
        assert!(row["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{row}");
        assert_eq!(row["incomplete"].is_u64(), row["mode"] == "linked", "{row}");
    }
    for row in once["recovery"].as_array().expect("recovery") {
        assert!(row["listed"].as_u64().is_some_and(|listed| listed > 0), "{row}");
    }
    assert_eq!(extant(&["bench", "linked", "--scale", "0"]).status.code(), Some(2));
}

#[test]
fn the_papers_work_on_a_kero_layer_is_measured_beside_ext3() {
    let folder = tempfile::tempdir().expect("a directory");
    let figures = json(&extant(&["bench", "kero", "--scale", "0.001", "--dir", text(folder.path()), "--json"]));
    let work = figures["work"].as_array().expect("work");
    let peers: std::collections::BTreeSet<_> = work.iter().map(|row| row["peer"].as_str().expect("a peer")).collect();
    assert!(peers.len() == 8 && work.len().is_multiple_of(8) && peers.contains("ext3 ordered"), "{peers:?}");
    for row in work {
        let on_layer = row["peer"].as_str().is_some_and(|peer| peer.contains("Kero"));
        assert_eq!(row["layer"].is_object(), on_layer, "{row}");
        assert!(row["home_seconds"].as_f64() >= row["seconds"].as_f64(), "{row}");
    }
    assert_eq!(figures["opened"].as_array().map(Vec::len), Some(2), "{figures}");
    assert!(std::fs::read_dir(folder.path()).expect("a listing").next().is_none(), "a volume was not removed");
}

/// Requests that a client of a file server might make: every operation that a load file can contain.
const LOAD: &str = r#"Deltree "\clients\client1" NT_STATUS_OK
Mkdir "\clients" NT_STATUS_OK
NTCreateX "\clients\client1" 0x1 0x2 1 NT_STATUS_OK
Close 1 NT_STATUS_OK
Mkdir "\clients\client1\DIR" NT_STATUS_OK
NTCreateX "\clients\client1\DIR\A FILE" 0x40 0x1 2 NT_STATUS_OBJECT_NAME_NOT_FOUND
NTCreateX "\clients\client1\DIR\A FILE" 0x40 0x2 3 NT_STATUS_OK
WriteX 3 0 65536 65536 NT_STATUS_OK
LockX 3 0 1 NT_STATUS_OK
Flush 3 NT_STATUS_OK
ReadX 3 60000 10000 5536 NT_STATUS_OK
QUERY_FILE_INFORMATION 3 258 NT_STATUS_OK
SET_FILE_INFORMATION 3 1004 NT_STATUS_OK
Rename "\clients\client1\DIR\A FILE" "\clients\client1\B" NT_STATUS_OK
QUERY_PATH_INFORMATION "\clients\client1\B" 1004 NT_STATUS_OK
Unlink "\clients\client1\B" 0x6 NT_STATUS_OK
WriteX 3 65536 10 10 NT_STATUS_OK
Close 3 NT_STATUS_OK
NTCreateX "\clients\client1\DIR\STAYS" 0x40 0x5 4 NT_STATUS_OK
FIND_FIRST "\clients\client1\DIR\*.*" 260 1366 2 NT_STATUS_OK
QUERY_FS_INFORMATION 1 NT_STATUS_OK
"#;

#[test]
fn the_papers_experiments_on_the_native_format_report_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let load = folder.path().join("load.txt");
    std::fs::write(&load, LOAD).unwrap();
    let peers = ["library:extant", "library:extant:none"];
    let on = ["bench", "write", "--on", peers[0], "--on", peers[1], "-n", "1", "--json"];
    let sets = ["create-delete", "postmark", "fsync"].map(|set| ["--set", set]).concat();
    let small = json(&extant(&[&on[..], &sets, &["--scale", "0.01"]].concat()));
    // the whole load file, since it is this short
    let dbench = json(&extant(&[&on[..], &["--set", "dbench", "--load", load.to_str().unwrap()]].concat()));
    let of = |bench: &Value| bench["phases"].as_array().expect("phases").clone();
    let phases = [of(&small), of(&dbench)].concat();
    let expected = [
        "empty files, three times: create and delete",
        "PostMark: PostMark",
        "fsync: append 4 KiB, fsync each",
        "fsync: overwrite 4 KiB, fsync each",
        "fsync: create with 4 KiB, fsync each",
        "dbench: 1 client",
        "dbench: 4 clients",
        "dbench: 8 clients",
        "dbench: 16 clients",
        "dbench: 32 clients",
    ];
    let names: Vec<_> = phases.iter().map(|phase| phase["what"].as_str().unwrap()).collect();
    assert_eq!(names, expected);
    for phase in phases.iter().filter(|phase| phase["what"].as_str().unwrap().starts_with("fsync: create")) {
        let flushes = |peer: usize| phase["peers"][peer]["written"]["flushes"]["median"].as_f64().unwrap();
        // a generation is a run, a flush, a superblock, a flush; without ordering there is a single flush
        assert_eq!((flushes(0), flushes(1)), (40.0, 20.0), "{phase}");
    }
}

/// A benchmark that is ended by a signal removes its volumes; as root also those that are mounted.
#[test]
fn a_signal_leaves_nothing_behind() {
    if !need(&["mke2fs", "e2fsck"]) {
        return;
    }
    let mut peers = vec!["library:ext4"];
    if tools::is_root() && tools::has_loop() {
        peers.extend(["kernel:ext4", "extant:ext4"]);
    }
    for (peer, signal, status) in peers.iter().flat_map(|peer| [(peer, Signal::TERM, 143), (peer, Signal::INT, 130)]) {
        let dir = tempfile::tempdir().expect("a directory");
        let [volumes, mounts] = ["volumes", "mounts"].map(|name| dir.path().join(name));
        for dir in [&volumes, &mounts] {
            std::fs::create_dir(dir).expect("a directory");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
        let line = ["bench", "write", "--on", *peer, "--set", "empty", "-n", "1000", "--dir", text(&volumes)];
        command.args(line).env("TMPDIR", &mounts).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = command.spawn().expect("extant runs");
        let is_empty = |dir: &Path| std::fs::read_dir(dir).expect("a listing").next().is_none();
        let start = Instant::now();
        while is_empty(&volumes) && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(500));
        kill_process(Pid::from_child(&child), signal).expect("a signal");
        let output = child.wait_with_output().expect("an end");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{peer}: {said}");
        assert!(said.ends_with("; mounts and temporary files were removed\n"), "{peer}: {said}");
        assert!(is_empty(&volumes) && is_empty(&mounts), "{peer}: {said}");
        let table = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
        assert!(!table.contains(text(dir.path())), "{peer}: {table}");
    }
}
