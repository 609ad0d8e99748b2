// The exception of the collectives; the binding maps its kinds to the classes of softs_fast.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace softs::collective {

enum class Failure {
    config,     // arguments, or an impossible group
    peer_lost,  // a rank is dead, stopped, late or has left
    segment,    // shared memory cannot be made or opened, or a process not be watched
    forked,     // used in a fork of the process that made it
};

class Error : public std::runtime_error {
  public:
    Error(Failure failure, const std::string& what) : std::runtime_error(what), failure(failure) {}

    const Failure failure;
};

}  // namespace softs::collective
