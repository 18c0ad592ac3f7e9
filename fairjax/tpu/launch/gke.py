"""GKE: one JobSet, a replicated job a slice, started again by the cluster.

The form is that of jobset.x-k8s.io/v1alpha2. A worker that ends with a code that starting again
cannot help fails the whole set at once; every other end restarts all slices together, as JAX needs.
"""

from typing import Any

from fairjax.tpu.launch import workers
from fairjax.tpu.launch.commands import RESTARTED, Run, Step, Write
from fairjax.tpu.launch.manifests import to_yaml
from fairjax.tpu.launch.spec import LaunchSpec

GRACE_SECONDS = 300
"""Between SIGTERM and SIGKILL: the time to save."""


def manifest(spec: LaunchSpec) -> dict[str, Any]:
  """The JobSet as a dictionary."""
  a = spec.accelerator
  pod: dict[str, Any] = {
    'restartPolicy': 'Never',
    'hostNetwork': True,
    'dnsPolicy': 'ClusterFirstWithHostNet',
    'terminationGracePeriodSeconds': GRACE_SECONDS,
    'nodeSelector': {
      'cloud.google.com/gke-tpu-accelerator': a.chip.cloud.gke,
      'cloud.google.com/gke-tpu-topology': a.shape,
      'node.kubernetes.io/instance-type': a.machine,
      **({'cloud.google.com/gke-spot': 'true'} if spec.spot else {}),
      **({'cloud.google.com/reservation-name': spec.reservation} if spec.reservation else {}),
    },
    'tolerations': [{'key': 'google.com/tpu', 'operator': 'Exists'}] + (
      [{'key': 'cloud.google.com/gke-spot', 'operator': 'Exists'}] if spec.spot else []),
    'containers': [_container(spec)],
  }
  if spec.service_account:
    pod['serviceAccountName'] = spec.service_account
  if spec.buckets:
    pod['volumes'] = [_volume(bucket) for bucket in spec.buckets]
  annotations = {'gke-gcsfuse/volumes': 'true'} if spec.buckets else {}
  return {
    'apiVersion': 'jobset.x-k8s.io/v1alpha2',
    'kind': 'JobSet',
    'metadata': {
      'name': spec.job, 'namespace': spec.namespace, 'labels': spec.all_labels,
      'annotations': {
        'alpha.jobset.sigs.k8s.io/exclusive-topology': 'cloud.google.com/gke-nodepool'}},
    'spec': {
      'suspend': False,  # so that applying it again resumes what `stop` suspended
      'failurePolicy': {
        'maxRestarts': spec.restarts,
        'rules': [{'action': 'FailJobSet', 'onJobFailureReasons': ['PodFailurePolicy']}]},
      'replicatedJobs': [{
        'name': 'slice',
        'replicas': spec.slices,
        'template': {'spec': {
          'parallelism': a.num_machines, 'completions': a.num_machines, 'backoffLimit': 0,
          'podFailurePolicy': {'rules': [{
            'action': 'FailJob',
            'onExitCodes': {'containerName': 'fairjax', 'operator': 'NotIn',
                            'values': list(RESTARTED)}}]},
          'template': {
            'metadata': {'labels': spec.all_labels, 'annotations': annotations},
            'spec': pod}}}}]}}


def _container(spec: LaunchSpec) -> dict[str, Any]:
  env: list[dict[str, Any]] = [
    {'name': name, 'value': value} for name, value in spec.all_env.items()]
  env += [{'name': name, 'valueFrom': {'secretKeyRef': {'name': f'{spec.job}-env', 'key': name}}}
          for name in spec.secrets]
  container: dict[str, Any] = {
    'name': 'fairjax', 'image': spec.image,
    # Words, no shell: the signal to save reaches fairjax itself, and nothing needs quoting. `$(X)`
    # would be replaced by Kubernetes; `$$` keeps it.
    'command': ['fairjax', *(word.replace('$(', '$$(') for word in spec.words)],
    'env': env,
    'securityContext': {'privileged': True},
    'resources': {'limits': {'google.com/tpu': spec.accelerator.chips_per_machine}}}
  if spec.buckets:
    container['volumeMounts'] = [
      {'name': _volume_name(bucket), 'mountPath': f'{spec.mounts}/{bucket}'}
      for bucket in spec.buckets]
  return container


def _volume_name(bucket: str) -> str:
  return 'bucket-' + bucket.replace('.', '-').replace('_', '-')


def _volume(bucket: str) -> dict[str, Any]:
  return {'name': _volume_name(bucket), 'csi': {
    'driver': 'gcsfuse.csi.storage.gke.io',
    'volumeAttributes': {'bucketName': bucket,
                         'mountOptions': 'implicit-dirs,rename-dir-limit=100000'}}}


def _kubectl(spec: LaunchSpec, *words: str) -> tuple[str, ...]:
  return ('kubectl', f'--namespace={spec.namespace}', *words)


def up(spec: LaunchSpec) -> list[Step]:
  """Turns kubectl to the cluster and checks that it knows JobSets; the cluster grants the nodes."""
  steps: list[Step] = []
  if spec.cluster:
    steps.append(Run(('gcloud', 'container', 'clusters', 'get-credentials', spec.cluster,
                      f'--location={spec.region}',
                      *([f'--project={spec.project}'] if spec.project else [])),
                     'turn kubectl to the cluster'))
  return [*steps, Run(('kubectl', 'get', 'crd', 'jobsets.jobset.x-k8s.io'),
                      'see that the cluster knows JobSets')]


def run(spec: LaunchSpec) -> list[Step]:
  """Writes the manifest and applies it."""
  path = f'{workers.local_folder(spec)}/jobset.yaml'
  steps: list[Step] = [Run(('mkdir', '-p', workers.local_folder(spec)), 'a folder of this launch')]
  if spec.secrets:
    steps += workers.write_secrets(spec)
    steps += [Run(_kubectl(spec, 'delete', 'secret', f'{spec.job}-env', '--ignore-not-found'),
                  'replace the secrets of an earlier launch'),
              Run(_kubectl(spec, 'create', 'secret', 'generic', f'{spec.job}-env',
                           f'--from-env-file={workers.secrets_file(spec)}'),
                  'hand the secrets to the cluster'), *workers.forget_secrets(spec)]
  pods = f'{spec.slices} x {spec.accelerator.num_machines} pods'
  return [*steps, Write(path, to_yaml(manifest(spec)), pods),
          Run(_kubectl(spec, 'apply', '--filename', path), 'submit it')]


def status(spec: LaunchSpec) -> list[Step]:
  """Shows the set and its pods."""
  return [Run(_kubectl(spec, 'get', f'jobset/{spec.job}'), 'the set'),
          Run(_kubectl(spec, 'get', 'pods', f'--selector={_selector(spec)}', '--output=wide'),
              'its pods')]


def _selector(spec: LaunchSpec) -> str:
  return f'jobset.sigs.k8s.io/jobset-name={spec.job}'


def logs(spec: LaunchSpec, *, follow: bool) -> list[Step]:
  """Shows what the pods write, the name of each before its lines."""
  pods = spec.slices * spec.accelerator.num_machines
  return [Run(_kubectl(spec, 'logs', f'--selector={_selector(spec)}', '--prefix',
                       f'--max-log-requests={pods}', '--tail=100',
                       *(['--follow'] if follow else [])), 'what the pods write')]


def stop(spec: LaunchSpec) -> list[Step]:
  """Suspends the set: the pods get SIGTERM, save and go; `run` resumes it."""
  return [Run(_kubectl(spec, 'patch', f'jobset/{spec.job}', '--type=merge',
                       '--patch={"spec":{"suspend":true}}'), 'let the pods save and go')]


def down(spec: LaunchSpec) -> list[Step]:
  """Deletes the set, its pods and its secrets."""
  steps: list[Step] = [Run(_kubectl(spec, 'delete', f'jobset/{spec.job}', '--ignore-not-found'),
                           'delete the set and its pods', tries=3)]
  if spec.secrets:
    steps.append(Run(_kubectl(spec, 'delete', 'secret', f'{spec.job}-env', '--ignore-not-found'),
                     'delete its secrets', tries=3))
  return steps


def list_all(spec: LaunchSpec) -> list[Step]:
  """Lists the sets that fairjax made."""
  return [Run(_kubectl(spec, 'get', 'jobsets', '--selector=managed-by=fairjax'),
              'list what was launched here and is still there')]


def clean(spec: LaunchSpec) -> list[Step]:
  """Deletes sets of ours that ended."""
  return [Run(('bash', 'launch/clean.sh', 'gke', f'--namespace={spec.namespace}'),
              'delete our sets that ended')]


def what(spec: LaunchSpec) -> str:
  """What stands there and costs money, in words."""
  return (f'JobSet {spec.job} ({spec.slices} x {spec.accelerator.name}) in namespace '
          f'{spec.namespace}')
