"""A `gcloud` for tests: keeps a queued resource with hosts in a folder, and writes down every call.

The folder $FAKE_GCLOUD holds `world.json`:
  lives: a list of states for each request; `describe` goes through it, the last state stays;
         `GONE` finds nothing any more, `ANSWER:text` prints this text, `REFUSE:text` fails with
         it. Without a request, and after `delete`, nothing is there.
  hosts: names; ssh runs its line in a shell with the home FAKE_GCLOUD/hosts/NAME.
  skips: how many calls of ssh and scp leave the last host out, with a warning and code 0, as gcloud
         does with a slice that it cannot prepare.
  flakes: how many calls of ssh and scp fail with 255 before one works.
  reboot: whether the hosts boot anew at the first `follow`, which forget their processes.
  create: an error of `create`, if any.
A call that it does not know ends with 97, and so does a flag that the verb lacks or needs. `follow`
on a slice whose next state is not ACTIVE breaks off with 255: the slice was taken away meanwhile,
and nothing reaches it any more.
"""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

FOLDER = pathlib.Path(os.environ.get('FAKE_GCLOUD', ''))
# What all verbs take and what each takes ('=': with a value), by the reference of `gcloud compute
# tpus queued-resources` (cloud.google.com/sdk/gcloud/reference, 2026-11-27).
ALL = {'project=', 'format=', 'filter=', 'quiet', 'verbosity=', 'account='}
REACH = {
  'zone=', 'node=', 'worker=', 'batch-size=', 'dry-run', 'force-key-file-overwrite', 'plain',
  'ssh-key-file=', 'strict-host-key-checking=', 'internal-ip', 'tunnel-through-iap',
  'ssh-key-expiration=', 'ssh-key-expire-after='}
FLAGS = {
  'create': {
    'zone=', 'runtime-version=', 'accelerator-type=', 'topology=', 'type=', 'node-id=',
    'node-count=', 'node-prefix=', 'async', 'boot-disk=', 'data-disk=', 'description=',
    'guaranteed', 'internal-ips', 'labels=', 'metadata=', 'metadata-from-file=', 'network=',
    'range=', 'reserved', 'scopes=', 'service-account=', 'shielded-secure-boot', 'spot',
    'subnetwork=', 'tags=',
    'valid-after-duration=', 'valid-after-time=', 'valid-until-duration=', 'valid-until-time=',
    'reservation-host-folder=', 'reservation-host-organization=', 'reservation-host-project='},
  'delete': {'zone=', 'async', 'force'},
  'describe': {'zone='},
  'list': {'zone=', 'limit=', 'page-size=', 'sort-by=', 'uri'},
  'ssh': REACH | {'command=', 'output-directory=', 'ssh-flag='},
  'scp': REACH | {'compress', 'recurse', 'scp-flag='}}
NEEDED = {verb: {'zone='} for verb in FLAGS} | {
  'create': {'zone=', 'runtime-version='}}
SIZE = {'accelerator-type=', 'topology=', 'type='}
ABSENT = 'ERROR: (gcloud) NOT_FOUND: Resource was not found'


def main(argv):
  world = json.loads((FOLDER / 'world.json').read_text())
  path = FOLDER / 'state.json'
  state = json.loads(path.read_text()) if path.exists() else {
    'life': -1, 'at': 0, 'there': False, 'lost': False, 'rebooted': False,
    'flakes': world.get('flakes', 0), 'skips': world.get('skips', 0)}
  code = answer(argv, world, state)
  new = path.with_suffix('.new')  # a Ctrl-C to the caller's group may end this process here
  new.write_text(json.dumps(state))
  new.replace(path)
  return code


def fail(text, code=1):
  print(text, file=sys.stderr)
  return code


def wrong_flags(argv):
  """What the parser of `gcloud compute tpus queued-resources` would refuse."""
  verb, given = argv[3], set()
  for word in argv[4:]:
    if word.startswith('--'):
      name, has_value, _ = word[2:].partition('=')
      given.add(name + has_value)
  found = [f'{verb}: unrecognized --{flag}' for flag in given - ALL - FLAGS[verb]]
  found += [f'{verb}: --{flag} must be specified' for flag in NEEDED[verb] - given]
  if verb == 'create' and len(given & {'node-id=', 'node-count='}) != 1:
    found.append('create: exactly one of --node-id, --node-count')
  if verb == 'create' and given & SIZE not in ({'accelerator-type='}, {'topology=', 'type='}):
    found.append('create: either --accelerator-type, or --topology and --type')
  if option(argv, 'type') not in (None, 'v2', 'v3', 'v4'):
    found.append('create: --type must be one of v2, v3, v4')
  if {'internal-ip', 'tunnel-through-iap'} <= given or {'spot', 'reserved'} <= given:
    found.append(f'{verb}: at most one of two flags')
  return sorted(found)


def option(argv, name):
  return next((w.partition('=')[2] for w in argv if w.startswith(f'--{name}=')), None)


def answer(argv, world, state):
  life = world['lives'][min(state['life'], len(world['lives']) - 1)] if state['there'] else []
  if argv[:3] != ['compute', 'tpus', 'queued-resources']:
    return fail(f'unknown call {argv}', 97)
  verb, words = argv[3], argv[4:]
  if wrong := wrong_flags(argv):
    return fail('ERROR: (gcloud) ' + '; '.join(wrong), 97)
  if verb == 'create':
    if world.get('create'):
      return fail(world['create'])
    state.update(life=state['life'] + 1, at=0, there=True)
    return 0
  if verb == 'delete':
    if not state['there']:
      return fail(ABSENT)
    state['there'] = state['lost'] = False
    for pid in FOLDER.glob('hosts/*/fairjax-launch/*/pid'):
      try:
        os.killpg(int(pid.read_text().split()[0]), signal.SIGKILL)  # the machine is gone
      except ProcessLookupError:
        pass
      shutil.rmtree(pid.parent)
    return 0
  if verb == 'describe':
    return describe(life, state, plain=option(argv, 'format') == 'value(state.state)')
  if verb in ('ssh', 'scp') and life:
    if state['flakes'] > 0:
      state['flakes'] -= 1
      return fail('ERROR: [/usr/bin/ssh] exited with return code [255].', 255)
    return reach(verb, words, world, life, state)
  return fail(f'unknown call {argv}', 97)


def describe(life, state, *, plain):
  if not life:
    return fail(ABSENT)
  name = life[min(state['at'], len(life) - 1)]
  state['at'] += 1
  kind, _, text = name.partition(':')
  if kind == 'ANSWER':
    print(text)
    return 0
  if kind == 'REFUSE':
    return fail(text)
  if name == 'GONE':
    state['there'] = state['lost'] = False
    return fail(ABSENT)
  name, _, message = name.partition(': ')
  found = {'state': name}
  if message:
    found['failedData'] = {'error': {'message': message}}
  print(name if plain else json.dumps({'name': 'x', 'state': found}))
  return 0


def reach(verb, words, world, life, state):
  following = life[min(state['at'], len(life) - 1)]  # the next state that would be told
  command = option(words, 'command') or ''
  if state['lost'] or (' follow ' in f'{command} ' and following != 'ACTIVE'):
    state['lost'] = True
    return fail('Connection closed by remote host', 255)
  if ' follow ' in f'{command} ' and world.get('reboot') and not state['rebooted']:
    state['rebooted'] = True
    for pid in FOLDER.glob('hosts/*/fairjax-launch/*/pid'):
      pid.write_text(pid.read_text().split()[0] + ' another-boot\n')
      (pid.parent / 'exit').unlink(missing_ok=True)
    return fail('Connection closed by remote host', 255)
  first, hosts = 0, world['hosts']
  if state['skips'] > 0:
    state['skips'] -= 1
    fail('WARNING: Could not prepare all 2 nodes, attempting to ssh into the rest.')
    hosts = hosts[:-1]
  for host in hosts:
    home = FOLDER / 'hosts' / host
    if verb == 'scp':
      for word in words:
        if not word.startswith('--') and not word.endswith(':'):
          shutil.copy(word, home)
      continue
    # As gcloud does: cut at blanks; as ssh does: joined by blanks, read by the shell of the host.
    line = ' '.join(command.split(' '))
    done = subprocess.run(['bash', '-c', line], cwd=home, env={
      'PATH': os.environ['PATH'], 'HOME': str(home), 'FAKE_HOST': host,
      'FAIRJAX_RESTART_SECONDS': '0'})
    first = first or done.returncode
  return first


if __name__ == '__main__':
  with open(FOLDER / 'calls.jsonl', 'a') as calls:
    fcntl.flock(calls, fcntl.LOCK_EX)
    calls.write(json.dumps(sys.argv[1:]) + '\n')
    calls.flush()
    status = main(sys.argv[1:])
  sys.exit(status)
