"""SkyPilot: a managed job, which SkyPilot itself recovers after a preemption.

The form was checked against the schemas of SkyPilot 0.14.1.
"""

import shlex
from typing import Any

from fairjax.tpu.launch import workers
from fairjax.tpu.launch.commands import PREEMPTED, Run, Step, Write
from fairjax.tpu.launch.manifests import to_yaml
from fairjax.tpu.launch.spec import LaunchSpec


def task(spec: LaunchSpec) -> dict[str, Any]:
  """The task as a dictionary."""
  a = spec.accelerator
  task: dict[str, Any] = {
    'name': spec.job,
    'workdir': '.',
    'resources': {
      'infra': f'gcp/{spec.region}/{spec.zone}',
      'accelerators': f'tpu-{a.name}',
      'accelerator_args': {'runtime_version': spec.runtime_version or a.chip.cloud.runtime},
      'use_spot': spec.spot,
      'labels': spec.all_labels,
      # 42 alone: any other failure ends the job, a lost machine is recovered in any case.
      'job_recovery': {'max_restarts_on_errors': 0, 'recover_on_exit_codes': [PREEMPTED]}},
    'envs': spec.all_env,
    'setup': 'bash launch/worker.sh install\n',
    # exec: the signal to save reaches fairjax itself.
    'run': 'exec ' + shlex.join(
      ('bash', 'launch/worker.sh', 'exec', 'fairjax', *spec.words)) + '\n',
  }
  if spec.secrets:
    task['secrets'] = dict.fromkeys(spec.secrets)
  if spec.buckets:
    task['file_mounts'] = {f'{spec.mounts}/{bucket}': {'source': f'gs://{bucket}', 'mode': 'MOUNT'}
                           for bucket in spec.buckets}
  return task


def up(spec: LaunchSpec) -> list[Step]:
  """Checks that SkyPilot may use Google Cloud; it grants machines when the job runs."""
  return [Run(('sky', 'check', 'gcp'), 'see that SkyPilot may use Google Cloud')]


def run(spec: LaunchSpec) -> list[Step]:
  """Writes the task and submits it as a managed job."""
  path = f'{workers.local_folder(spec)}/task.yaml'
  secrets = [word for name in spec.secrets for word in ('--secret', name)]
  return [Run(('mkdir', '-p', workers.local_folder(spec)), 'a folder of this launch'),
          Write(path, to_yaml(task(spec)), f'{spec.accelerator.name}: {spec.num_devices} devices'),
          Run(('sky', 'jobs', 'launch', f'--name={spec.job}', *secrets, '--yes', '--detach-run',
               path), 'submit it')]


def status(spec: LaunchSpec) -> list[Step]:
  """Shows the jobs."""
  return [Run(('sky', 'jobs', 'queue', '--refresh'), 'the managed jobs')]


def logs(spec: LaunchSpec, *, follow: bool) -> list[Step]:
  """Shows what the job writes."""
  return [Run(('sky', 'jobs', 'logs', f'--name={spec.job}',
               '--follow' if follow else '--no-follow'), 'what the job writes')]


def stop(spec: LaunchSpec) -> list[Step]:
  """Cancels the job, which also deletes its machines; the same `run` continues it."""
  return [Run(('sky', 'jobs', 'cancel', f'--name={spec.job}', '--yes'),
              'cancel the job and delete its machines', tries=3)]


def down(spec: LaunchSpec) -> list[Step]:
  """As `stop`."""
  return stop(spec)


def list_all(spec: LaunchSpec) -> list[Step]:
  """Lists the jobs that have not ended."""
  return [Run(('sky', 'jobs', 'queue', '--refresh', '--skip-finished'),
              'list the jobs that have not ended')]


def clean(spec: LaunchSpec) -> list[Step]:
  """Nothing is left by jobs that ended; shows clusters that still stand."""
  return [Run(('sky', 'status', '--refresh'), 'SkyPilot deletes machines itself; see what stands')]


def what(spec: LaunchSpec) -> str:
  """What stands there and costs money, in words."""
  return f'managed job {spec.job} of SkyPilot ({spec.accelerator.name})'
