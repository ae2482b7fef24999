"""The spine: key -> stored sample, or build and store; then finish."""

import errno
import io
import os
import warnings
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from reuseloader.codec import Codec, FileCodec, Load, Save, torch_load, torch_save
from reuseloader.errors import ReuseError, ReuseWarning
from reuseloader.key import ReuseKey
from reuseloader.names import name_of
from reuseloader.order import IndexEpoch
from reuseloader.policy import ReusePolicy
from reuseloader.raised import add_note, describe
from reuseloader.record import (
    TRAILER_SIZE,
    Buffer,
    DamagedError,
    StaleError,
    Stamp,
    check_trailer,
    fingerprint_digest,
    seal,
    unseal,
)
from reuseloader.sample import require_cpu
from reuseloader.store import Bookkeeper, DirectoryStore, Store
from reuseloader.tally import Kind, Miss, Tally
from reuseloader.tensors import TensorsCodec
from reuseloader.validate import callable_or_none, instance, int_at_least

Build = Callable[[ReuseKey], Any]
Finish = Callable[[Any, ReuseKey], Any]
StorePath = str | os.PathLike[str] | Store

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # trouble of the process, not of a file


class Fetcher:
    """Delivers the sample of a pair. Holds no state but its settings, its store and its counts."""

    def __init__(
        self,
        build: Build,
        path: StorePath,
        policy: ReusePolicy,
        *,
        size: int | None,
        fingerprint: str,
        save: Save | None,
        load: Load | None,
        format: str,
        finish: Finish | None,
    ) -> None:
        self.build = _checked_build(build)
        self.policy = instance(ReusePolicy, "policy", policy)
        self.size = None if size is None else int_at_least(0, "size", size)
        instance(str, "fingerprint", fingerprint)
        self.codec = _codec(format, callable_or_none("save", save), callable_or_none("load", load))
        self.finish = callable_or_none("finish", finish)
        self.store = _opened(path)
        self.tally = Tally()
        self._fingerprint = fingerprint_digest(fingerprint)
        self._codec_id = self.codec.id
        if self.policy.lifetime > 1 and isinstance(self.store, Bookkeeper):
            self._compare_with_last_run(self.store)

    @property
    def parts(self) -> dict[str, Any]:
        """What must go along to a worker process, by the name of its argument."""
        return {
            "build": self.build,
            **self.codec.parts,
            "finish": self.finish,
            "path": self.store,
        }

    def fetch(self, pair: IndexEpoch) -> Any:
        """The sample of ``pair``, in its epoch."""
        return self.deliver(self.key(pair))

    def deliver(self, key: ReuseKey) -> Any:
        """The sample of ``key``: what is stored, or built anew and stored; then finished."""
        sample = self.read(key)
        if isinstance(sample, Miss):
            sample = self.make(key, sample)
            self.keep(key, sample)
        return self.finished(key, sample)

    def key(self, pair: IndexEpoch) -> ReuseKey:
        """The key of ``pair``; IndexError outside of ``size``."""
        key = self.policy.key(*pair)
        if self.size is not None and key.index >= self.size:
            raise IndexError(f"index {key.index} is out of range for size {self.size}")
        return key

    def read(self, key: ReuseKey) -> Any:
        """The stored sample of ``key``, a hit; a Miss if there is no sound record of its stamp."""
        return self._read(key, is_hit=True)

    def reread(self, key: ReuseKey) -> Any:
        """What a worker has just built and stored, which is no hit; or a Miss."""
        return self._read(key, is_hit=False)

    def _read(self, key: ReuseKey, *, is_hit: bool) -> Any:
        if self.policy.lifetime == 1:
            return Miss.NEW_GENERATION
        began = perf_counter_ns()
        try:
            record = self.store.read(key.index)
            if record is None:
                return self._why(key, Miss.ABSENT)
            sample = self.codec.decode(unseal(record, self._stamp(key)))
        except Exception as error:
            return self._why(key, self._missed(key, error))
        if is_hit:
            self.tally.hit(len(record), perf_counter_ns() - began)
        return sample

    def missing(self, key: ReuseKey) -> Miss | None:
        """Why it must be built, judged by the record's trailer alone; None if it is stored."""
        if self.policy.lifetime == 1:
            return Miss.NEW_GENERATION
        try:
            trailer = self._tail(key.index)
            if trailer is None:
                return self._why(key, Miss.ABSENT)
            check_trailer(trailer, self._stamp(key))
        except Exception as error:
            return self._why(key, self._missed(key, error))
        return None

    def _why(self, key: ReuseKey, found: Miss) -> Miss:
        """Whatever lies there in place of a sample that is due anew is not the reason."""
        return Miss.NEW_GENERATION if key.epoch == key.first_epoch else found

    def _tail(self, index: int) -> Buffer | None:
        if hasattr(self.store, "tail"):
            return self.store.tail(index, TRAILER_SIZE)  # type: ignore[no-any-return]
        record = self.store.read(index)
        return None if record is None else record[-TRAILER_SIZE:]

    def make(self, key: ReuseKey, why: Miss = Miss.NEW_GENERATION) -> Any:
        """Build the sample of ``key``, always from the key of its generation's first use."""
        began = perf_counter_ns()
        sample = _call("build", key, self._build, key.first)
        self.tally.built(why, perf_counter_ns() - began)
        return sample

    def _build(self, first: ReuseKey) -> Any:
        sample = self.build(first)
        require_cpu(sample)
        # build may return memory that it keeps, such as a row of a dataset's tensor
        return sample if self.finish is None else self.codec.copy(sample)

    def keep(self, key: ReuseKey, sample: Any) -> bool:
        """Store a built sample unless this is its last use; return whether it is stored."""
        if self.policy.is_last_use(key):
            return False
        began = perf_counter_ns()
        payload = self.encode(key, sample)
        try:
            record = seal(payload, self._stamp(key))
            self.store.write(key.index, record)
        except Exception as error:
            self._count(Kind.UNSAVED, key, error)
            return False
        self.tally.stored(len(record), perf_counter_ns() - began)
        return True

    def encode(self, key: ReuseKey, sample: Any, codec: Codec | None = None) -> bytes:
        """The payload of a built sample, by the codec of the store or another one."""
        return _call("save", key, (codec or self.codec).encode, sample)  # type: ignore[no-any-return]

    def decode(self, key: ReuseKey, codec: Codec, payload: bytes) -> Any:
        """The sample of a payload, or a Miss if it cannot be loaded."""
        try:
            return codec.decode(payload)
        except Exception as error:
            return self._missed(key, error)

    def finished(self, key: ReuseKey, sample: Any) -> Any:
        """The sample after the cheap last part, which gets the key of the present use."""
        if self.finish is None:
            return sample
        began = perf_counter_ns()
        sample = _call("finish", key, self.finish, sample, key)
        self.tally.finished(perf_counter_ns() - began)
        return sample

    def close(self) -> None:
        """Warn of what went wrong and release the store."""
        self.tally.warn()
        self.store.close()

    def _stamp(self, key: ReuseKey) -> Stamp:
        return Stamp(
            codec=self._codec_id,
            generation=key.generation,
            seed=key.seed,
            lifetime=self.policy.lifetime,
            fingerprint=self._fingerprint,
        )

    def _missed(self, key: ReuseKey, error: Exception) -> Miss:
        """Which miss a failure to read is."""
        if isinstance(error, StaleError):
            return Miss.OTHER_STAMP
        self._count(Kind.UNREADABLE, key, error)
        return Miss.DAMAGED

    def _count(self, kind: Kind, key: ReuseKey, error: Exception) -> None:
        """Count a failure of the store that costs no sample; raise what is no such failure."""
        exhausted = isinstance(error, OSError) and error.errno in _EXHAUSTED
        if exhausted or isinstance(error, (MemoryError, ReuseError)):
            add_note(error, f"{_where(key)}, at {self._place(key)}")
            raise error
        reason = str(error) if isinstance(error, DamagedError) else describe(error)
        self.tally.note(kind, self._place(key), reason.partition("\n")[0])

    def _place(self, key: ReuseKey) -> str:
        locate = getattr(self.store, "locate", None)
        return locate(key.index) if locate else f"{self.store!r}, index {key.index}"

    def _compare_with_last_run(self, store: Bookkeeper) -> None:
        size, name, fingerprint = self.size, name_of(self.build), self._fingerprint.hex()
        before = store.read_book()
        same = before.get("fingerprint") == fingerprint
        if same and size is None:
            size = before.get("size")
        store.write_book({"fingerprint": fingerprint, "size": size, "build": name})
        if same:
            size_before = size if before.get("size") is None else before["size"]
            if (size_before, before.get("build")) != (size, name):
                warnings.warn(
                    f"{store.path} was last used for {size_before} samples of "
                    f"{before.get('build')}, now for {size} of {name}, under the same fingerprint. "
                    f"Is this another split? Give it a directory of its own. Has build changed? "
                    f"Change the fingerprint, or samples of the old one are used",
                    ReuseWarning,
                    stacklevel=4,
                )


def _checked_build(build: Any) -> Build:
    if isinstance(build, IterableDataset):
        raise TypeError(
            f"build must be a function of a key, got the IterableDataset {build!r}: a stream has "
            f"no index to reuse samples by"
        )
    if isinstance(build, Dataset):
        raise TypeError(
            f"build must be a function of a key, got the Dataset {build!r}: pass "
            f"FromDataset(dataset), which builds its items seeded by the key"
        )
    if not callable(build):
        raise TypeError(f"build must be callable, got {build!r}")
    return build  # type: ignore[no-any-return]


def _codec(format: str, save: Save | None, load: Load | None) -> Codec:
    if format == "torch":
        return FileCodec(save or torch_save, load or torch_load)
    if format != "tensors":
        raise ValueError(f"format must be 'torch' or 'tensors', got {format!r}")
    for name, function in (("save", save), ("load", load)):
        if function is not None:
            raise ValueError(f"{name} must not be given with format='tensors', got {function!r}")
    return TensorsCodec()


def _opened(path: Any) -> Store:
    if isinstance(path, Store) and not isinstance(path, (type, io.IOBase)):
        return path
    if isinstance(path, (str, os.PathLike)):
        return DirectoryStore(path)
    raise TypeError(f"path must be a str, a path or a store, got {path!r}")


def _where(key: ReuseKey) -> str:
    return f"index {key.index}, epoch {key.epoch}, generation {key.generation}"


def _call(name: str, key: ReuseKey, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the user's; its errors say for which sample they came."""
    try:
        return function(*args)
    except StopIteration as error:  # as it is, it would end the pass in silence
        raise RuntimeError(f"{name} raised StopIteration for {_where(key)}") from error
    except Exception as error:
        add_note(error, f"in {name} for {_where(key)}")
        raise
