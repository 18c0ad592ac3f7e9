"""A `gcloud` for tests: keeps a queued resource with hosts in a folder, and writes down every call.

The folder $FAKE_GCLOUD holds `world.json`:
  lives: a list of states for each request; `describe` goes through it, the last state stays;
         `ERROR` is a question that fails, `ANSWER:text` and `REFUSE:text` one that prints this text
         (as an error with code 1). Without a request, and after `delete`, nothing is there.
  hosts: names; ssh runs its line in a shell with the home FAKE_GCLOUD/hosts/NAME.
  flakes: how many calls of ssh and scp fail with 255 before one works.
  reboot: whether the hosts boot anew at the first `follow`, which forget their processes.
  create: an error of `create`, if any.
  absent: an error of `describe` where nothing is there.
A call that it does not know ends with 97. `follow` on a slice whose next state is not ACTIVE breaks
off with 255: the slice was taken away meanwhile, and nothing reaches it any more.
"""

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

FOLDER = pathlib.Path(os.environ['FAKE_GCLOUD'])
ABSENT = 'ERROR: (gcloud) NOT_FOUND: Resource was not found'


def main(argv):
  world = json.loads((FOLDER / 'world.json').read_text())
  path = FOLDER / 'state.json'
  state = json.loads(path.read_text()) if path.exists() else {
    'life': -1, 'at': 0, 'there': False, 'lost': False, 'rebooted': False,
    'flakes': world.get('flakes', 0)}
  code = answer(argv, world, state)
  path.write_text(json.dumps(state))
  return code


def fail(text, code=1):
  print(text, file=sys.stderr)
  return code


def option(argv, name):
  return next((w.partition('=')[2] for w in argv if w.startswith(f'--{name}=')), None)


def answer(argv, world, state):
  life = world['lives'][min(state['life'], len(world['lives']) - 1)] if state['there'] else []
  if argv[:3] != ['compute', 'tpus', 'queued-resources']:
    return fail(f'unknown call {argv}', 97)
  verb, words = argv[3], argv[4:]
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
    return describe(life, state, world)
  if verb in ('ssh', 'scp') and life:
    if state['flakes'] > 0:
      state['flakes'] -= 1
      return fail('ERROR: [/usr/bin/ssh] exited with return code [255].', 255)
    return reach(verb, words, world, life, state)
  return fail(f'unknown call {argv}', 97)


def describe(life, state, world):
  if not life:
    return fail(world.get('absent', ABSENT))
  name = life[min(state['at'], len(life) - 1)]
  state['at'] += 1
  kind, _, text = name.partition(':')
  if kind == 'ANSWER':
    print(text)
    return 0
  if kind == 'REFUSE':
    return fail(text)
  if name == 'ERROR':
    return fail('ERROR: (gcloud) Connection reset by peer')
  name, _, message = name.partition(': ')
  found = {'state': name}
  if message:
    found['failedData'] = {'error': {'message': message}}
  print(json.dumps({'name': 'x', 'state': found}))
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
  first = 0
  for host in world['hosts']:
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


with open(FOLDER / 'calls.jsonl', 'a') as calls:
  fcntl.flock(calls, fcntl.LOCK_EX)
  calls.write(json.dumps(sys.argv[1:]) + '\n')
  calls.flush()
  status = main(sys.argv[1:])
sys.exit(status)
