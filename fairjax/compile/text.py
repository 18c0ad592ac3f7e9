"""What `fairjax compile` prints."""

from fairjax.compile.analysis import Analysis

FLOOR_CAVEAT = ('Floors are FLOPs / peak FLOP/s and bytes / memory bandwidth of a device, not '
                'times: no program was run.')


def describe(found: Analysis) -> list[str]:
  """Lines about one program on one slice."""
  mesh = ' '.join(f'{axis}={size}' for axis, size in found.mesh.items()) or 'one device'
  lines = [f'{found.part} on {found.topology}: mesh {mesh}, batch {found.batch_size}']
  if not found.memory:
    lines.append(f'  the compiler refuses it: needs {gib(found.required)} of '
                 f'{gib(found.available)} a device, DOES NOT FIT, {found.bytes_over:,} bytes over')
    return lines
  lines.append('  ' + ', '.join(f'{name} {gib(size)}' for name, size in found.memory.items()))
  verdict = (f'fits, {gib(-found.bytes_over)} left' if found.fits else
             f'DOES NOT FIT, {found.bytes_over:,} bytes over')
  lines.append(f'  needs {gib(found.required)} of {gib(found.available)} that programs may use of '
               f'{gib(found.hbm)} a device: {verdict}')
  if found.cost is None:
    lines.append('  not counted: this jaxlib cannot read what this libtpu wrote; one that fits: '
                 "pip install 'jax[tpu]'")
    return lines
  lines.append(f"  {_scaled(found.cost['flops'], 'FLOP')} and {_scaled(found.cost['bytes'], 'B')} "
               'moved on each device; floors (not times): '
               f"{1e3 * found.floors['flops']:,.3g} ms at peak FLOP/s, "
               f"{1e3 * found.floors['bytes']:,.3g} ms at full bandwidth")
  lines.append(f'  collectives: {collectives(found)}')
  lines += [f'  note: {note} ({number} in the program)'
            for note, number in found.cost['notes'].items()]
  lines.append(f'  compiled in {found.seconds:.0f} s')
  return lines


def shortage(found: Analysis) -> str:
  """What a program that does not fit lacks, in one line."""
  split = f" with mesh.fsdp={found.mesh['fsdp']}" if 'fsdp' in found.mesh else ''
  return (f'{found.program} needs {"" if found.memory else "at least "}{gib(found.required)} of '
          f'{gib(found.available)} a device on {found.topology}{split}, {gib(found.bytes_over)} '
          f'({found.bytes_over:,} bytes) too much')


def collectives(found: Analysis) -> str:
  """Number and bytes by kind."""
  return ', '.join(f"{int(number):,} {kind} ({_scaled(size, 'B')})" for kind, (number, size)
                   in sorted(found.cost['collectives'].items())) or 'none'


def gib(size: float) -> str:
  """Bytes for people.

  >>> gib(3 * 2**29), gib(-3 * 2**9)
  ('1.50 GiB', '-1.5 KiB')
  """
  for unit, digits, power in (('GiB', 2, 30), ('MiB', 1, 20)):
    if abs(size) >= 2**power / 10:
      return f'{size / 2**power:.{digits}f} {unit}'
  return f'{size / 2**10:.1f} KiB'


def _scaled(value: float, unit: str) -> str:
  for prefix, power in (('T', 12), ('G', 9), ('M', 6)):
    if value >= 10**power:
      return f'{value / 10**power:.3g} {prefix}{unit}'
  return f'{value:.0f} {unit}'
