"""The command ``tvmdml generate``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import click

from tvmdml.errors import counted
from tvmdml.options import device_option
from tvmdml.system.console import INTERRUPTED, print_json, printable, say, shown_bytes, shown_seconds

if TYPE_CHECKING:
    from tvmdml.genai.command import PromptOutcome
    from tvmdml.targets import Target

_NEW_TOKENS = 256


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(exists=True))
@click.argument("prompt", default="-")
@click.option("--chat", is_flag=True, help="Put the prompt into the folder's chat template, as a user's message.")
@click.option("--system", metavar="TEXT", help="With --chat: what the model is told first.")
@click.option("--max-new-tokens", type=click.IntRange(1), help=f"Most tokens after the prompt.  [default: {_NEW_TOKENS}]")
@click.option("--max-length", type=click.IntRange(1), help="Most tokens with the prompt.")
@click.option("--min-length", type=int, help="Least tokens with the prompt.")
@click.option("--temperature", type=float, help="How evenly tokens are drawn: 0 takes the likeliest one.")
@click.option("--top-k", type=int, help="Draw among so many tokens; 0 for all.")
@click.option("--top-p", type=float, help="Draw among the likeliest tokens whose probabilities sum up to this.")
@click.option("--seed", type=click.IntRange(0, (1 << 31) - 1), help="What random numbers follow from.")
@click.option("--repetition-penalty", type=float, help="Above 1: how much tokens that were there are ruled out.")
@click.option("--beams", type=int, help="Beginnings that go on at the same time; the likeliest text is the result.")
@click.option("--results", type=int, help="With --beams: how many texts.")
@device_option
@click.option(
    "--accuracy",
    type=click.Choice(["exact", "file"]),
    default="exact",
    help="file: round to bytes where the file allows it; faster prompts.",
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Maximum number of threads.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with the text, its tokens and all figures, at the end.")
def generate(
    folder: str,
    prompt: str,
    chat: bool,
    system: str | None,
    max_new_tokens: int | None,
    max_length: int | None,
    min_length: int | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    repetition_penalty: float | None,
    beams: int | None,
    results: int | None,
    device: Target | None,
    accuracy: str,
    threads: int | None,
    as_json: bool,
) -> None:
    """Go on with a PROMPT by the language model in a FOLDER of ONNX Runtime GenAI's model builder, or a pack. - is standard input.

    \b
    tvmdml generate phi-3-mini "What is a tensor?" --chat
    tvmdml generate llama "Once upon a time" --temperature 0.8 --top-k 50 --seed 1 --max-new-tokens 100

    The text is printed as it comes, and figures on standard error: tokens a second, the time to the first token, memory. Tokens are
    drawn if --temperature, --top-k, --top-p or --seed is given; other options are those of genai_config.json. Ctrl-C ends the text.
    """  # noqa: D301 - \b tells click not to rewrap the text
    if max_new_tokens is not None and max_length is not None:
        raise click.UsageError("--max-new-tokens and --max-length say the same thing: give one of them.")
    if system is not None and not chat:
        raise click.UsageError("--system is for --chat.")
    draws = any(value is not None for value in (temperature, top_k, top_p, seed))
    given: dict[str, Any] = {
        "max_length": max_length,
        "min_length": min_length,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "random_seed": seed,
        "repetition_penalty": repetition_penalty,
        "num_beams": beams,
        "num_return_sequences": results,
        "do_sample": draws or None,
    }
    if threads is not None:
        os.environ["TVMDML_NUM_THREADS"] = str(threads)
    from tvmdml.genai import command
    from tvmdml.targets.cpu.thread_count import thread_count

    outcome = command.run(
        folder,
        sys.stdin.read() if prompt == "-" else prompt,
        {name: value for name, value in given.items() if value is not None},
        target=device,
        accuracy=accuracy,
        threads=thread_count(),
        new=None if max_length is not None else max_new_tokens or _NEW_TOKENS,
        system=system,
        chat=chat,
        show=(lambda piece: None) if as_json else _show,
    )
    if as_json:
        print_json(outcome.record())
    else:
        click.echo()
        _summarize(outcome)
    if outcome.finish == "interrupted":
        sys.exit(INTERRUPTED)


def _show(piece: str) -> None:
    """Print a piece of text; on a terminal without characters that control it."""
    if sys.stdout.isatty():
        piece = "".join(c if c in "\n\t" else printable(c) for c in piece)
    click.echo(piece, nl=False)
    sys.stdout.flush()


def _summarize(outcome: PromptOutcome) -> None:
    """Print the figures on standard error."""
    say(
        f"{outcome.prompt_tokens} prompt tokens, first token after {shown_seconds(outcome.first_seconds)}; "
        f"{len(outcome.tokens)} new tokens, {outcome.tokens_per_second:.1f} a second ({outcome.finish}); "
        f"loaded in {shown_seconds(outcome.load_seconds)}; at most {shown_bytes(outcome.peak_memory)} of memory; "
        f"{outcome.target.partition('+')[0]}, {counted(outcome.threads, 'thread')}",
        err=True,
        dim=True,
    )
