// Other processes as the kernel sees them: who they are, whether they live, what state they are in.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace softs::collective {

// A process, told from a later one of the same number by its start.
struct Member {
    pid_t pid = 0;
    std::uint64_t started = 0;  // clock ticks since boot
};

// This process.
Member this_process();

// When a process began, in clock ticks since boot; 0 if there is none.
std::uint64_t process_started(pid_t pid);

// How often this process's ancestry was forked since this module was loaded; a change tells an object that it is in a fork.
unsigned fork_count() noexcept;

// Descriptors of the processes of a group; they become readable when their process has ended, at once.
class Watch {
  public:
    // Throws Error{segment} where the kernel has no process descriptors.
    Watch(std::vector<Member> members, int self);
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch();

    // Whether the process of a rank has ended; that of the own rank never has.
    bool ended(int rank) const noexcept;

    // "rank 2 (process 4711, stopped)".
    std::string describe(int rank) const;

    const std::vector<Member>& members() const noexcept { return members_; }

  private:
    void close_all() noexcept;

    std::vector<Member> members_;
    std::vector<int> descriptors_;  // negative for the own rank, and for those that had ended before
};

}  // namespace softs::collective
