// Other processes as the kernel sees them: identity, liveness and state.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace softs::collective {

// A process. Its start tells it from a later process of the same number.
struct Member {
    pid_t pid = 0;
    std::uint64_t started = 0;        // clock ticks since boot
    std::uint64_t pid_namespace = 0;  // inode; 0 where it is known to be that of this process
};

// This process.
Member this_process();

// Whether a process runs, by the rule of rust/shm/src/process/liveness.rs; rust/shm/tests/liveness_cases.txt has the
// cases of both. A process is dead when a descriptor of it (a pidfd) is readable, when no process has its number
// (ESRCH), or when the process of its number has another start. Everything that cannot be determined counts as alive.
bool is_alive(const Member& process) noexcept;

// The number of forks between the process that loaded this module and this one; a change tells an object that it is
// in a fork.
unsigned fork_count() noexcept;

// Descriptors of the processes of a group; one becomes readable as soon as its process has ended.
class Watch {
  public:
    // Throws Error{segment} where the kernel gives no descriptor of a process that may be alive.
    Watch(std::vector<Member> members, int self);
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch();

    // Whether the process of a rank has ended; false for the own rank.
    bool ended(int rank) const noexcept;

    // Becomes readable when the process of a rank ends; negative for the own rank, and if it had ended before.
    int descriptor(int rank) const noexcept { return descriptors_[static_cast<std::size_t>(rank)]; }

    // "rank 2 (process 4711, stopped)".
    std::string describe(int rank) const;

    const std::vector<Member>& members() const noexcept { return members_; }

  private:
    void close_all() noexcept;

    std::vector<Member> members_;
    std::vector<int> descriptors_;  // negative for the own rank, and for processes that had ended before
};

}  // namespace softs::collective
