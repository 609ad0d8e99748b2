// Threads of our own in the process of a user.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace softs::collective {

// A thread that gets no signals: those are for threads that can handle them.
template <class Function>
std::thread thread_without_signals(Function function) {
    struct Mask {
        sigset_t before;
        ~Mask() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    } mask;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &mask.before);
    return std::thread(std::move(function));
}

}  // namespace softs::collective
