// What goes wrong in a collective, as one exception with a kind; the binding turns kinds into the classes of softs_fast.errors.
#pragma once

#include <stdexcept>
#include <string>

namespace softs::collective {

enum class Failure {
    config,     // arguments, or a group that cannot be what was asked for
    peer_lost,  // a rank is dead, stopped, late or gone
    segment,    // shared memory cannot be had, opened or watched
    forked,     // used in a fork of the process that made it
};

class Error : public std::runtime_error {
  public:
    Error(Failure failure, const std::string& what) : std::runtime_error(what), failure(failure) {}

    const Failure failure;
};

}  // namespace softs::collective
