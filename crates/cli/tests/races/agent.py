"""Processes of the race hunt that have to be processes: members of a transaction, and those that map a file or lock a range.

    agent.py member SCRIPT READY GO    does what a file says, one operation a line (see MEMBER below)
    agent.py map FILE PAGES            maps a file; commands come on standard input, each is answered with one line
    agent.py count FILE                adds one to the number in a file, again and again, under fcntl(2)'s lock
"""

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import sys
import time

PAGE = 4096


def fill(tag, length):
    tag = tag.encode()
    return (tag * (length // len(tag) + 1))[:length]


def name_of(error):
    return errno.errorcode.get(error.errno, str(error.errno))


def write_at(path, flags, offset, content):
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        if offset is None:
            os.write(fd, content)
        else:
            os.pwrite(fd, content, offset)
    finally:
        os.close(fd)


def create(path, mode, tag, length):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, int(mode, 8))
    try:
        os.fchmod(fd, int(mode, 8))
        os.write(fd, fill(tag, int(length)))
    finally:
        os.close(fd)


def sync_file(path):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def map_in_child(path, page, tag, milliseconds):
    """A process below the member changes a mapped page, which stays mapped for a while."""
    made, done = os.pipe()
    if os.fork() == 0:
        die_with_parent()
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            with mmap.mmap(fd, (int(page) + 1) * PAGE) as mapped:
                mapped[int(page) * PAGE : int(page) * PAGE + 64] = fill(tag, 64)
                os.write(done, b"x")
                time.sleep(int(milliseconds) / 1000)
        finally:
            os._exit(0)
    os.close(done)
    os.read(made, 1)
    os.close(made)


MEMBER = {
    "create": create,
    "append": lambda path, tag, length: write_at(path, os.O_WRONLY | os.O_APPEND, None, fill(tag, int(length))),
    "write": lambda path, at, tag, length: write_at(path, os.O_WRONLY, int(at), fill(tag, int(length))),
    "truncate": lambda path, length: os.truncate(path, int(length)),
    "rename": os.rename,
    "unlink": os.unlink,
    "link": os.link,
    "symlink": os.symlink,
    "mkdir": os.mkdir,
    "rmdir": os.rmdir,
    "chmod": lambda path, mode: os.chmod(path, int(mode, 8)),
    "fsync": sync_file,
    "map": map_in_child,
    "sleep": lambda milliseconds: time.sleep(int(milliseconds) / 1000),
}


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def member(script, ready, go):
    """Exit status 0 where every operation succeeded, 9 where one failed, or what `exit` says."""
    die_with_parent()
    status = 0
    with open(script) as lines:
        operations = [line.rstrip("\n").split("\t") for line in lines]
    for operation, *arguments in operations:
        if operation == "ready":
            with open(ready + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.rename(ready + ".new", ready)
        elif operation == "wait":
            while not os.path.exists(go):
                time.sleep(0.005)
        elif operation == "exit":
            return int(arguments[0])
        else:
            try:
                MEMBER[operation](*arguments)
            except OSError as error:
                print("%s %s: %s" % (operation, " ".join(arguments), name_of(error)), file=sys.stderr)
                status = 9
    return status


def mapper(path, pages):
    """put PAGE TEXT, get PAGE, msync, fsync: "ok", "err NAME" or "val TEXT"."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    mapped = mmap.mmap(fd, int(pages) * PAGE)
    print("ok", flush=True)
    for line in sys.stdin:
        words = line.split()
        try:
            answer = "ok"
            if words[0] == "put":
                at = int(words[1]) * PAGE
                mapped[at : at + 64] = words[2].encode().ljust(64, b".")
            elif words[0] == "get":
                at = int(words[1]) * PAGE
                answer = "val " + mapped[at : at + 64].rstrip(b".\0").decode("latin-1")
            elif words[0] == "msync":
                mapped.flush()
            elif words[0] == "fsync":
                os.fsync(fd)
        except OSError as error:
            answer = "err " + name_of(error)
        print(answer, flush=True)
    return 0


def count(path):
    """Prints how often it added one, when its input ends. A number is eight digits."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    os.set_blocking(0, False)
    added = 0
    while True:
        try:
            if os.read(0, 1) == b"":
                break
        except BlockingIOError:
            pass
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX)
            try:
                number = int(os.pread(fd, 8, 0))
                time.sleep(0.001)
                os.pwrite(fd, b"%08d" % (number + 1), 0)
                added += 1
            finally:
                fcntl.lockf(fd, fcntl.LOCK_UN)
        except OSError as error:
            if error.errno == errno.EBUSY:
                continue
            break
        time.sleep(0.002)
    print(added, flush=True)
    return 0


def main():
    role, *arguments = sys.argv[1:]
    return {"member": member, "map": mapper, "count": count}[role](*arguments)


if __name__ == "__main__":
    sys.exit(main())
