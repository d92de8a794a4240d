"""The commands: one function each, no logic. What a parameter means on the command line stands in its `Arg`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pmsfl.bench import command as benching
from pmsfl.bench.setting import Setting
from pmsfl.commands import Arg, Command, Group
from pmsfl.data.simulate import Plan
from pmsfl.deploy import command as deploying
from pmsfl.paper.cli import PAPER
from pmsfl.report import (
    attacking,
    catalogue,
    comparison,
    dataview,
    listing,
    models,
    sensing,
    sweeping,
    training,
    using,
)
from pmsfl.report import privacy as promises

ABOUT = "Split federated learning with probabilistic masks. Start with: pmsfl run"

RECIPE = Arg("A shipped recipe's name (see `pmsfl recipes`) or a TOML file.", metavar="RECIPE")
CHANGES = Arg("Change a key: key=value. May be given several times.", short="-c", name="config", metavar="K=V")
SWEPT = Arg(
    "Values of a key: key=v1,v2. Where values hold commas, separate them by semicolons: 'depths=1,2;2'.",
    short="-c",
    name="config",
    metavar="K=V,V",
)
RUN = Arg("A run's directory.", metavar="RUN")
CLIENT = Arg("Take this client's own model instead of the global one.", metavar="K")
DEVICE = Arg("Where to compute.", choices=("auto", "cpu", "cuda"))
MEASURED = Arg("A recipe; cifar100 on a GPU and demo on a CPU unless told. No data files are needed.", metavar="RECIPE")
REPEATS = Arg("Timed blocks, the spread is over them.", metavar="N")
RECORD = Arg("Write record.json and log there, too.", metavar="DIR")
KEEP = Arg("Keep the messages there, to measure them on another machine, too.", metavar="FILE")
ADMIN_KIT = Arg("The administrator's kit.", metavar="KIT")
SENSOR = Arg("mmhar (mmWave radar) or sonichar (ultrasound).", metavar="SENSOR", choices=("mmhar", "sonichar"))
PICTURE = Arg("Draw example maps, too.", metavar="FILE.png")
JSON = Arg("Print one JSON object as the last line of stdout.", name="json")


def run(
    recipe: Annotated[str, RECIPE] = "demo",
    *,
    method: Annotated[str | None, Arg("What is trained; see `pmsfl methods`.", short="-m")] = None,
    changes: Annotated[list[str] | None, CHANGES] = None,
    out: Annotated[Path | None, Arg("Run directory (new, or the one to resume).", metavar="DIR")] = None,
    resume: Annotated[bool, Arg("Go on with the run in --out, or this recipe's newest.")] = False,
    executor: Annotated[str, Arg("cohort is fast, reference is simple.", choices=("cohort", "reference"))] = "cohort",
    device: Annotated[str, DEVICE] = "auto",
    threads: Annotated[int | None, Arg("CPU threads torch may use.", metavar="N")] = None,
    dry_run: Annotated[bool, Arg("Only say what the run would cost.")] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Train a recipe, or say what it would cost."""
    chosen = training.Choice(recipe, tuple(changes or ()), method, device, threads)
    training.play(chosen, out, resume, executor, dry_run, as_json)


def compare(
    runs: Annotated[list[Path], Arg("Runs, or directories of runs; the first is the baseline.", metavar="RUN...")],
    *,
    html: Annotated[Path | None, Arg("Write a page with charts, too.", metavar="FILE.html")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Compare finished runs: mean and standard error over seeds, differences paired by seed."""
    comparison.show(runs, as_json, html)


def ls(directory: Annotated[Path, Arg("Where runs lie.", metavar="DIR")] = Path("runs")) -> None:
    """List runs: how far they are and what they reached."""
    listing.list_runs(directory)


def show(path: Annotated[Path, RUN]) -> None:
    """Show one run: recipe, accuracy over time, mask entropy per layer, bytes."""
    listing.show_run(path)


def report(path: Annotated[Path, RUN]) -> None:
    """Write a run's report.html again: charts of accuracy, entropy, bytes, clients."""
    training.rewrite_report(path)


def sweep(
    recipe: Annotated[str, RECIPE] = "demo",
    *,
    method: Annotated[str | None, Arg("Methods: a,b.", short="-m", metavar="A,B")] = None,
    changes: Annotated[list[str] | None, SWEPT] = None,
    seeds: Annotated[int | None, Arg("Seeds 0 to N-1 of every cell; 1 unless told.", metavar="N")] = None,
    out: Annotated[Path | None, Arg("Where the runs go; sweeps/NAME unless told.", metavar="DIR")] = None,
    executor: Annotated[str, Arg("cohort is fast, reference is simple.", choices=("cohort", "reference"))] = "cohort",
    device: Annotated[str, DEVICE] = "auto",
    jobs: Annotated[int, Arg("Cells at once, each a process with one CPU thread.", metavar="N")] = 1,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Train every combination of methods, values and seeds; call it again to go on where it stopped."""
    sweeping.sweep(recipe, method, changes or [], seeds, out, executor, device, jobs, as_json)


def methods(*, as_json: Annotated[bool, JSON] = False) -> None:
    """List the methods: what each trains and uploads."""
    catalogue.methods(as_json)


def recipes() -> None:
    """List the recipes that come with the package."""
    catalogue.recipes()


def knobs(key: Annotated[str | None, Arg("Only this key.", metavar="KEY")] = None) -> None:
    """List every key of a recipe: default, allowed values, meaning."""
    catalogue.knobs(key)


def data(
    recipe: Annotated[str, RECIPE] = "demo",
    *,
    changes: Annotated[list[str] | None, CHANGES] = None,
    out: Annotated[Path | None, Arg("Draw labels by client as a heat map.", metavar="FILE.png")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show who holds what: samples, classes and depth of every client."""
    dataview.show(recipe, changes or [], out, as_json)


def check_model(
    model: Annotated[str, Arg("Your function, or a shipped model's name.", metavar="MODULE:FUNCTION")],
    *,
    input_shape: Annotated[str, Arg("Shape of one sample.", metavar="C,H,W")] = "3,32,32",
    classes: Annotated[int, Arg("How many classes.", metavar="N")] = 10,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check your own model: what is masked, what each cut costs, whether clients run vectorised."""
    models.check(model, input_shape, classes, as_json)


def export(
    path: Annotated[Path, RUN],
    *,
    client: Annotated[int | None, CLIENT] = None,
    out: Annotated[Path | None, Arg("Where to write; the run's own folder unless told.", metavar="DIR")] = None,
) -> None:
    """Write a trained model as safetensors, with an example that loads it."""
    using.export(path, client, out)


def predict(
    path: Annotated[Path, RUN],
    file: Annotated[Path, Arg("Samples: an .npz with x and, for an accuracy, y.", metavar="FILE.npz")],
    *,
    client: Annotated[int | None, CLIENT] = None,
    out: Annotated[Path | None, Arg("Save labels and probabilities.", metavar="FILE.npz")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Classify samples with a run's model."""
    using.predict(path, file, client, out, as_json)


def privacy(
    recipe: Annotated[str, Arg("A recipe's name, a TOML file, or a run's directory.", metavar="RECIPE|RUN")] = "demo",
    *,
    changes: Annotated[list[str] | None, CHANGES] = None,
    rounds: Annotated[int | None, Arg("After so many rounds, instead of the recipe's.", metavar="N")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Say what is guaranteed for each channel to the server: the ε of a recipe, or the ε that a run has spent."""
    promises.show(recipe, changes or [], rounds, as_json)


def attack(
    path: Annotated[Path, RUN],
    *,
    attacks: Annotated[str, Arg("all, or names: joint,decoder.", metavar="NAMES")] = "all",
    images: Annotated[int, Arg("How many images to reconstruct.", metavar="N")] = 16,
    observations: Annotated[
        str,
        Arg(
            "same-view: chosen images, an upper bound; as-recorded: what -c record=true kept.",
            choices=("same-view", "as-recorded"),
        ),
    ] = "same-view",
    budget: Annotated[str, Arg("How hard to try.", choices=("quick", "full"))] = "quick",
    skip_reference: Annotated[bool, Arg("Do not attack the bottom without its mask as well: half the time.")] = False,
    device: Annotated[str, DEVICE] = "auto",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Reconstruct a run's images as a curious server could: the suite's maximum, the floor, the unmasked value."""
    attacking.attack(path, attacks, images, observations, budget, not skip_reference, device, as_json)


def bench_step(
    recipe: Annotated[str | None, MEASURED] = None,
    *,
    changes: Annotated[list[str] | None, CHANGES] = None,
    device: Annotated[str, DEVICE] = "auto",
    repeats: Annotated[int, REPEATS] = 10,
    profile: Annotated[bool, Arg("Say where the time goes, by kind of kernel.")] = False,
    record: Annotated[Path | None, RECORD] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time one step of the whole cohort against an eager loop over the same clients."""
    benching.bench_step(Setting.of(recipe, changes or [], device, repeats), profile, record, as_json)


def bench_round(
    recipe: Annotated[str | None, MEASURED] = None,
    *,
    changes: Annotated[list[str] | None, CHANGES] = None,
    device: Annotated[str, DEVICE] = "auto",
    rounds: Annotated[int, Arg("Timed rounds of each variant; one more warms it up.", metavar="N")] = 5,
    own_data: Annotated[bool, Arg("The recipe's own data and clients instead of clients of one size.")] = False,
    record: Annotated[Path | None, RECORD] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time whole rounds: PM-SFL and SplitFed, clients cut at one depth and at all of them."""
    benching.bench_rounds(Setting.of(recipe, changes or [], device, rounds), own_data, record, as_json)


def bench_scale(
    recipe: Annotated[str | None, MEASURED] = None,
    *,
    changes: Annotated[list[str] | None, CHANGES] = None,
    clients: Annotated[str, Arg("Clients in a step, from few to many.", metavar="K,K")] = "10,20,50,100",
    device: Annotated[str, DEVICE] = "auto",
    repeats: Annotated[int, REPEATS] = 10,
    record: Annotated[Path | None, RECORD] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Time steps of growing cohorts, and their memory."""
    benching.bench_scale(Setting.of(recipe, changes or [], device, repeats), clients, record, as_json)


def deploy_init(
    folder: Annotated[Path, Arg("Where the kits go; new or empty.", metavar="DIR")],
    *,
    sites: Annotated[str, Arg("The sites' names.", metavar="A,B,C")],
    server: Annotated[str, Arg("The server's host name, as the sites reach it.", metavar="HOST")] = "localhost",
    port: Annotated[int, Arg("Its one inbound port.", metavar="N")] = 8002,
) -> None:
    """Make a signed kit for the server, each site and the administrator."""
    deploying.init(folder, sites, server, port)


def deploy_server(kit: Annotated[Path, Arg("The server's kit.", metavar="KIT")]) -> None:
    """Run the server on this host until it is stopped."""
    deploying.serve(kit)


def deploy_site(
    kit: Annotated[Path, Arg("This site's kit.", metavar="KIT")],
    *,
    data: Annotated[str, Arg("An .npz with x and y, or owner:NAME[@PATH] of the recipe's data.", metavar="PATH")],
    depth: Annotated[int | None, Arg("Cut after this block; the recipe's unless told.", metavar="D")] = None,
    repeat_simulation: Annotated[bool, Arg("For tests: masks from the run's seed, which protects nothing.")] = False,
    secure_sums: Annotated[bool, Arg("Take part in no run without secure sums.")] = False,
) -> None:
    """Run a site on this host until it is stopped; its data stays here."""
    deploying.site(kit, data, depth, repeat_simulation, secure_sums)


def deploy_start(
    recipe: Annotated[str, RECIPE] = "demo",
    *,
    kit: Annotated[Path, ADMIN_KIT],
    method: Annotated[str | None, Arg("What is trained; see `pmsfl methods`.", short="-m")] = None,
    changes: Annotated[list[str] | None, CHANGES] = None,
    run: Annotated[
        str | None, Arg("The run's name; the recipe's, method's and seed unless told.", metavar="NAME")
    ] = None,
    job_rounds: Annotated[int, Arg("Rounds in a job: what a crash costs at most.", metavar="N")] = 5,
    min_clients: Annotated[int, Arg("Go on with so many sites.", metavar="K")] = 2,
    step_seconds: Annotated[float, Arg("Wait so long for a site in each step.", metavar="S")] = 30.0,
    secure_sums: Annotated[bool, Arg("Sum masks so that the server sees none of them; begin the run with it.")] = False,
) -> None:
    """Train a recipe over the connected sites; call it again to go on."""
    deploying.start(recipe, changes or [], method, kit, run, job_rounds, min_clients, step_seconds, secure_sums)


def deploy_status(
    kit: Annotated[Path, Arg("The administrator's kit, or the server's on its own host.", metavar="KIT")],
    *,
    run: Annotated[str | None, Arg("Which run; the newest unless told.", metavar="NAME")] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show rounds, accuracy, sites, bytes, mask health and times of a run."""
    deploying.status(kit, run, as_json)


def deploy_stop(
    kit: Annotated[Path, ADMIN_KIT],
    *,
    everything: Annotated[bool, Arg("Shut the server and all sites down, too.", name="all")] = False,
) -> None:
    """Abort the jobs that are under way; finished rounds stay."""
    deploying.stop(kit, everything)


DEPLOY: dict[str, Command] = {
    "init": deploy_init,
    "server": deploy_server,
    "site": deploy_site,
    "start": deploy_start,
    "status": deploy_status,
    "stop": deploy_stop,
}


def simulate(
    sensor: Annotated[str, SENSOR],
    folder: Annotated[Path, Arg("Where SENSOR.npz goes.", metavar="DIR")] = Path("data"),
    *,
    subjects: Annotated[int, Arg("How many persons.", metavar="N")] = 10,
    variance: Annotated[float, Arg("How much they differ: 0 not at all, 5 at most.", metavar="X")] = 1.0,
    seed: Annotated[int, Arg("Every draw derives from it.", metavar="N")] = 0,
    keep_raw: Annotated[bool, Arg("Keep the raw signals in DIR/SENSOR-raw.")] = False,
    jobs: Annotated[int, Arg("Processes; the set is the same for any number.", metavar="N")] = 1,
    picture: Annotated[Path | None, PICTURE] = None,
) -> None:
    """Simulate a sensor set: moving bodies, their raw signals, the chain, one .npz."""
    sensing.make_up(Plan(sensor, subjects, variance, seed), folder, keep_raw, jobs, picture)


def prepare(
    sensor: Annotated[str, SENSOR],
    root: Annotated[Path, Arg("Recordings: SUBJECT/ACTIVITY/ROOM_TAKE.npy or .wav.", metavar="RAWDIR")],
    out: Annotated[Path, Arg("The set to write.", metavar="OUT.npz")],
    *,
    picture: Annotated[Path | None, PICTURE] = None,
) -> None:
    """Put recordings of a radar or a phone through the chain into one .npz."""
    sensing.from_recordings(sensor, root, out, picture)


def bench_wire(
    path: Annotated[
        Path | None,
        Arg("A run's directory, or a file of --keep; without it the demo is trained for a few rounds.", metavar="RUN"),
    ] = None,
    *,
    device: Annotated[str, DEVICE] = "auto",
    repeats: Annotated[int, REPEATS] = 5,
    record: Annotated[Path | None, RECORD] = None,
    keep: Annotated[Path | None, KEEP] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Measure every codec on a run's own messages: bits per parameter, ratio to fp32, MB/s."""
    benching.bench_wire(path, device, repeats, record, keep, as_json)


BENCH: dict[str, Command] = {"step": bench_step, "round": bench_round, "scale": bench_scale, "wire": bench_wire}

COMMANDS: dict[str, Command | Group] = {
    "run": run,
    "compare": compare,
    "ls": ls,
    "show": show,
    "report": report,
    "sweep": sweep,
    "methods": methods,
    "recipes": recipes,
    "knobs": knobs,
    "data": data,
    "check-model": check_model,
    "export": export,
    "predict": predict,
    "attack": attack,
    "privacy": privacy,
    "deploy": Group("A real federation over a network: kits, server, sites, jobs.", DEPLOY),
    "simulate": simulate,
    "prepare": prepare,
    "bench": Group("Measure speed: a step, a round, a growing cohort, the wire.", BENCH),
    "paper": Group("The paper's tables and figures, and our controls beside them.", PAPER),
}
