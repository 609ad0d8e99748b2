#include "process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "error.hpp"

namespace softs::collective {
namespace {

std::atomic<unsigned> forks{0};

constexpr int ended_already = -2;  // in place of a descriptor

// Counting in the child costs nothing per call; getpid would be a system call each time.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

struct Status {
    char state = 0;  // 0: it cannot be read
    std::uint64_t started = 0;
};

Status status_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(file, text, '\0');
    // The second field is the command in parentheses, and may itself hold both spaces and parentheses.
    const auto end = text.rfind(')');
    if (end == std::string::npos) return {};
    std::istringstream fields(text.substr(end + 1));
    Status status;
    fields >> status.state;
    std::string skipped;
    for (int field = 4; field < 22; ++field) fields >> skipped;
    fields >> status.started;
    return fields ? status : Status{};
}

std::string in_words(char state) {
    switch (state) {
        case 'T':
            return "stopped";
        case 't':
            return "stopped by a debugger";
        case 'R':
            return "running";
        case 'D':
            return "waiting for a disk";
        case 'S':
            return "sleeping";
        default:
            return "ended";
    }
}

// The inode of this process's pid namespace; 0 if it cannot be read.
std::uint64_t own_namespace() noexcept {
    struct stat found{};
    return ::stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

bool is_readable(int descriptor) noexcept {
    pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
    return poll(&entry, 1, 0) == 1;
}

// A descriptor of a process; `ended_already` if it is dead; -1 and the error if there is none of a process that may
// be alive.
int open_process(const Member& process, int& error) {
    error = 0;
    if (process.pid <= 0) return ended_already;  // no process has such a number
    const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, process.pid, 0));
    error = descriptor >= 0 ? 0 : errno;
    if (error == ESRCH) return ended_already;
    // Read after the descriptor was opened. Also without a descriptor: there is none of a number that a thread has by
    // now.
    const Status status = status_of(process.pid);
    const bool is_another = status.state != 0 && status.started != process.started;
    if (is_another || (descriptor >= 0 && is_readable(descriptor))) {
        if (descriptor >= 0) ::close(descriptor);
        return ended_already;
    }
    return descriptor;
}

}  // namespace

Member this_process() {
    return {.pid = getpid(), .started = status_of(getpid()).started, .pid_namespace = own_namespace()};
}

bool is_alive(const Member& process) noexcept {
    const std::uint64_t own = own_namespace();
    if (process.pid_namespace != 0 && own != 0 && process.pid_namespace != own) return true;
    try {
        int error = 0;
        const int descriptor = open_process(process, error);
        if (descriptor >= 0) ::close(descriptor);
        return descriptor != ended_already;
    } catch (...) {
        return true;  // out of memory
    }
}

unsigned fork_count() noexcept {
    return forks.load(std::memory_order_relaxed);
}

Watch::Watch(std::vector<Member> members, int self) : members_(std::move(members)), descriptors_(members_.size(), -1) {
    for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
        if (rank == self) continue;
        const Member& member = members_[static_cast<std::size_t>(rank)];
        int error = 0;
        const int descriptor = open_process(member, error);
        descriptors_[static_cast<std::size_t>(rank)] = descriptor;
        if (descriptor >= 0 || descriptor == ended_already) continue;
        const std::string process = "rank " + std::to_string(rank) + " (process " + std::to_string(member.pid) + ')';
        close_all();
        throw Error(Failure::segment, "cannot watch " + process + ": " + std::strerror(error) + "; Linux 5.3 or newer is needed");
    }
}

Watch::~Watch() {
    close_all();
}

void Watch::close_all() noexcept {
    for (const int descriptor : descriptors_) {
        if (descriptor >= 0) ::close(descriptor);
    }
}

bool Watch::ended(int rank) const noexcept {
    const int descriptor = descriptors_[static_cast<std::size_t>(rank)];
    if (descriptor < 0) return descriptor == ended_already;
    return is_readable(descriptor);
}

std::string Watch::describe(int rank) const {
    const Member& member = members_[static_cast<std::size_t>(rank)];
    const std::string state = ended(rank) ? "ended" : in_words(status_of(member.pid).state);
    return "rank " + std::to_string(rank) + " (process " + std::to_string(member.pid) + ", " + state + ')';
}

}  // namespace softs::collective
