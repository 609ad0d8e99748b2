#include "process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
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

constexpr int ended_already = -2;  // in the place of a descriptor

// Counting in the child costs nothing per call; asking for the process number would be a system call each time.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1); });

struct Status {
    char state = 0;  // 0: no such process
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

}  // namespace

Member this_process() {
    return {.pid = getpid(), .started = process_started(getpid())};
}

std::uint64_t process_started(pid_t pid) {
    return status_of(pid).started;
}

unsigned fork_count() noexcept {
    return forks.load(std::memory_order_relaxed);
}

Watch::Watch(std::vector<Member> members, int self) : members_(std::move(members)), descriptors_(members_.size(), -1) {
    for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
        if (rank == self) continue;
        const Member& member = members_[static_cast<std::size_t>(rank)];
        const int descriptor = static_cast<int>(syscall(SYS_pidfd_open, member.pid, 0));
        const int error = errno;
        // Asked after the descriptor was opened: one that began then is what the descriptor stands for.
        const bool same = descriptor >= 0 && status_of(member.pid).started == member.started;
        if (same) {
            descriptors_[static_cast<std::size_t>(rank)] = descriptor;
            continue;
        }
        if (descriptor >= 0) ::close(descriptor);
        // Another process of that number, or none: this one has ended.
        if (descriptor >= 0 || error == ESRCH) {
            descriptors_[static_cast<std::size_t>(rank)] = ended_already;
            continue;
        }
        const std::string who = "rank " + std::to_string(rank) + " (process " + std::to_string(member.pid) + ')';
        close_all();
        throw Error(Failure::segment, "cannot watch " + who + ": " + std::strerror(error) + "; Linux 5.3 or newer is needed");
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
    pollfd asked{.fd = descriptor, .events = POLLIN, .revents = 0};
    return poll(&asked, 1, 0) == 1;
}

std::string Watch::describe(int rank) const {
    const Member& member = members_[static_cast<std::size_t>(rank)];
    const std::string state = ended(rank) ? "ended" : in_words(status_of(member.pid).state);
    return "rank " + std::to_string(rank) + " (process " + std::to_string(member.pid) + ", " + state + ')';
}

}  // namespace softs::collective
