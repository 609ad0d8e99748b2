// One call of a group: checks that the group works, excludes other calls, and measures the time.
#pragma once

#include "error.hpp"
#include "group.hpp"

namespace softs::collective {

class Group::Call {
  public:
    Call(Group& group, Kind kind, std::size_t bytes)
        : group_(group), guard_(group.mutex_), start_(Clock::now()), metric_(group.metrics_[static_cast<std::size_t>(kind)]) {
        group_.check_usable();
        if (group_.is_unconfirmed_)
            throw Error(Failure::config, "a broadcast of this rank waits to be confirmed by the queue of the group");
        group_.waited_ = {};
        ++metric_.calls;
        metric_.bytes += bytes;
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    ~Call() {
        metric_.total += Clock::now() - start_;
        metric_.waiting += group_.waited_;
    }

  private:
    Group& group_;
    std::lock_guard<std::mutex> guard_;
    Clock::time_point start_;
    Metric& metric_;
};

}  // namespace softs::collective
