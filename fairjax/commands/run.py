"""The verbs of the main job: all of it, or one of its parts."""

import argparse

from fairjax.commands.verb import Verb, add_run_options, open_job, open_training

RUN_OPTIONS = '--config=configs/quickstart.py --workdir=runs/quickstart'
"""Of the examples."""


def _add_train_options(parser: argparse.ArgumentParser) -> None:
  add_run_options(parser)
  parser.add_argument('--stage', choices=('lm', 'sentiment', 'debias'), default=None,
                      help="train up to and with this stage (default: config's until)")


def _run(options: argparse.Namespace) -> None:
  open_training(options).run()


def _train(options: argparse.Namespace) -> None:
  open_training(options, until=options.stage).train(until=options.stage)


def _score(options: argparse.Namespace) -> None:
  open_job(options).score()


VERBS = (
  Verb('run', 'the whole job: data, curriculum, sampling, scores, measures, report',
       f'fairjax run {RUN_OPTIONS}', add_run_options, _run),
  Verb('train', 'train up to a stage of the curriculum',
       f'fairjax train {RUN_OPTIONS} --stage=lm', _add_train_options, _train),
  Verb('score', 'score the sampled continuations', f'fairjax score {RUN_OPTIONS}',
       add_run_options, _score),
)
